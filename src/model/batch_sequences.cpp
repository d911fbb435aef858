#include "batch_sequences.h"

#include <algorithm>
#include <utility>

namespace sftrun::model {
namespace {

/// Most tokens that the cache holds of a sequence.
int64_t max_length_of(const SequenceRequest& request) {
  return static_cast<int64_t>(request.prompt.tokens.size()) + request.options->max_new_tokens;
}

}  // namespace

BatchSequences::BatchSequences(Decoder& decoder, size_t max_size)
    : decoder_(decoder), max_size_(max_size), cache_(decoder) {}

std::vector<size_t> BatchSequences::admit(bool one_prompt) {
  constexpr size_t kMaxTokens = 4096;  // beyond that a pass is no faster per token
  std::vector<size_t> admitted;
  for (size_t tokens = 0; !waiting_.empty() && tokens < kMaxTokens;) {
    if (one_prompt && !admitted.empty()) break;
    tokens += waiting_.front().prompt.tokens.size();
    admitted.push_back(rows_.size());
    rows_.push_back({.request = std::move(waiting_.front())});
    waiting_.pop_front();
  }
  return admitted;
}

void BatchSequences::remove(size_t row) {
  const size_t last = rows_.size() - 1;
  cache_.move_row(static_cast<int64_t>(last), static_cast<int64_t>(row));
  if (row != last) rows_[row] = std::move(rows_[last]);
  rows_.pop_back();
}

std::vector<size_t> BatchSequences::drop(const std::function<bool(size_t)>& is_dropped) {
  std::vector<size_t> dropped;
  const auto is_noted = [&](const SequenceRequest& request) {
    if (!is_dropped(request.prompt.index)) return false;
    dropped.push_back(request.prompt.index);
    return true;
  };
  for (size_t row = rows_.size(); row-- > 0;)
    if (is_noted(rows_[row].request)) remove(row);
  std::erase_if(waiting_, is_noted);
  return dropped;
}

void BatchSequences::clear() {
  rows_.clear();
  waiting_.clear();
  cache_ = SequenceCache(decoder_);
}

void BatchSequences::reserve(int64_t length) {
  int64_t longest = 0;
  for (const CachedSequence& row : rows_) longest = std::max(longest, max_length_of(row.request));
  cache_.reserve({.rows = static_cast<int64_t>(rows_.size()), .length = std::min(length, longest)},
                 {.rows = static_cast<int64_t>(max_size_), .length = longest});
}

uint64_t BatchSequences::cache_bytes(size_t more, int64_t length) const {
  for (const CachedSequence& row : rows_) length = std::max(length, max_length_of(row.request));
  for (const SequenceRequest& request : waiting_) length = std::max(length, max_length_of(request));
  return cache_.bytes({.rows = static_cast<int64_t>(size() + more), .length = length});
}

}  // namespace sftrun::model
