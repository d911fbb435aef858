#include "onig_regex.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <mutex>

#include "sftrun/core/error.h"
#include "unicode.h"

namespace sftrun::text {

struct Regex::Compiled {
  OnigRegex regex = nullptr;
  ~Compiled() { onig_free(regex); }
};

namespace {

struct Region {
  OnigRegion* region = onig_region_new();
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() { onig_region_free(region, 1); }
};

const OnigUChar* bytes(const char* p) {
  return reinterpret_cast<const OnigUChar*>(p);
}

/// onig_initialize and onig_new fill tables of the library: one thread at a time.
std::mutex& compile_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

}  // namespace

Regex::Regex(std::string pattern, const std::string& where)
    : pattern_(std::move(pattern)), compiled_(std::make_unique<Compiled>()) {
  constexpr size_t kMostBytes = 16384;  // a property of five bytes is written out in ten thousand
  if (pattern_.size() > kMostBytes) {
    throw DataError(fmt::format("the tokenizer's pattern has {} bytes, more than {}",
                                pattern_.size(), kMostBytes),
                    where);
  }
  const std::string expanded = expand_properties(pattern_);
  const std::lock_guard lock(compile_mutex());
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  onig_initialize(encodings, 1);
  OnigErrorInfo info{};
  const int code =
      onig_new(&compiled_->regex, bytes(expanded.data()), bytes(expanded.data() + expanded.size()),
               ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL) {
    compiled_->regex = nullptr;
    throw DataError(fmt::format("the tokenizer's pattern `{}` is not valid: {}", pattern_,
                                error_text(code, &info)),
                    where);
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text, std::vector<ByteSpan>& matches) const {
  matches.clear();
  Region found;
  const char* const end = text.data() + text.size();
  size_t from = 0;
  while (from <= text.size()) {
    const int at =
        onig_search(compiled_->regex, bytes(text.data()), bytes(end), bytes(text.data() + from),
                    bytes(end), found.region, ONIG_OPTION_NONE);
    if (at == ONIG_MISMATCH) return;
    if (at < 0) {
      throw DataError(fmt::format("matching the tokenizer's pattern `{}` failed: {}", pattern_,
                                  error_text(at)));
    }
    const ByteSpan match{static_cast<uint32_t>(found.region->beg[0]),
                         static_cast<uint32_t>(found.region->end[0])};
    const bool repeats =
        match.begin == match.end && !matches.empty() && matches.back().end == match.end;
    if (repeats) {
      from += from < text.size() ? decode_char(text.data() + from).num_bytes : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
}

}  // namespace sftrun::text
