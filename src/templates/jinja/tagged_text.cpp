#include "jinja/tagged_text.h"

#include <algorithm>

namespace sftrun::templates::jinja {

size_t TaggedText::run_index(size_t byte) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), byte,
                                      [](size_t at, const Run& run) { return at < run.end; });
  return static_cast<size_t>(after - runs_.begin());
}

OriginId TaggedText::origin_at(size_t byte) const {
  if (runs_.empty()) return origin_;
  const size_t index = run_index(byte);
  return index < runs_.size() ? runs_[index].origin : runs_.back().origin;
}

std::vector<TaggedText::Run> TaggedText::runs() const {
  if (!runs_.empty()) return runs_;
  if (bytes_.empty()) return {};
  return {Run{static_cast<uint32_t>(bytes_.size()), origin_}};
}

void TaggedText::extend_runs(size_t num_bytes, OriginId origin) {
  const auto old_size = static_cast<uint32_t>(bytes_.size());
  if (old_size == 0) {
    origin_ = origin;
    runs_.clear();
    return;
  }
  if (runs_.empty()) {
    if (origin == origin_) return;
    runs_.push_back({old_size, origin_});
  }
  const uint32_t new_size = old_size + static_cast<uint32_t>(num_bytes);
  if (runs_.back().origin == origin) {
    runs_.back().end = new_size;
  } else {
    runs_.push_back({new_size, origin});
  }
}

void TaggedText::append(std::string_view bytes, OriginId origin) {
  if (bytes.empty()) return;
  extend_runs(bytes.size(), origin);
  bytes_.append(bytes);
}

void TaggedText::append(const TaggedText& other, size_t begin, size_t end) {
  if (begin >= end) return;
  const std::string_view bytes = std::string_view(other.bytes_).substr(begin, end - begin);
  if (other.runs_.empty()) {
    append(bytes, other.origin_);
    return;
  }
  for (size_t index = other.run_index(begin), at = begin; at < end; ++index) {
    const size_t stop = std::min<size_t>(end, other.runs_[index].end);
    append(bytes.substr(at - begin, stop - at), other.runs_[index].origin);
    at = stop;
  }
}

TaggedText TaggedText::slice(size_t begin, size_t end) const {
  TaggedText part;
  part.append(*this, begin, std::min(end, size()));
  return part;
}

void TaggedText::mark_generation() {
  origin_ |= kInGeneration;
  for (Run& run : runs_) run.origin |= kInGeneration;
}

}  // namespace sftrun::templates::jinja
