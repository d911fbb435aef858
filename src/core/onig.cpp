#include "sftrun/core/onig.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <mutex>

namespace sftrun {

struct OnigPattern::Compiled {
  OnigRegex regex = nullptr;
  OnigLimits limits;
  ~Compiled() { onig_free(regex); }
};

struct OnigSearch::State {
  explicit State(const OnigPattern::Compiled& compiled) : regex(compiled.regex) {
    onig_initialize_match_param(limits);
    onig_set_match_stack_limit_size_of_match_param(limits, compiled.limits.stack_entries);
    onig_set_retry_limit_in_match_of_match_param(limits, compiled.limits.match_steps);
    onig_set_retry_limit_in_search_of_match_param(limits, compiled.limits.search_steps);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    onig_region_free(region, 1);
    onig_free_match_param(limits);
  }

  OnigRegex regex;
  OnigRegion* region = onig_region_new();
  OnigMatchParam* limits = onig_new_match_param();
};

namespace {

const OnigUChar* bytes(const char* p) {
  return reinterpret_cast<const OnigUChar*>(p);
}

/// onig_initialize and onig_new modify global tables, so only one thread may call them.
std::mutex& compile_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Nesting of brackets: far more than people write, and safe for the stack.
constexpr unsigned kMaxNesting = 500;

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  if (code == ONIGERR_PARSE_DEPTH_LIMIT_OVER) return "its brackets nest too deep";
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return std::string(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

std::optional<OnigSearch::Match> match_of(int at, const OnigRegion& region) {
  if (at == ONIG_MISMATCH) return std::nullopt;
  if (at < 0) throw OnigError(error_text(at));
  return OnigSearch::Match{static_cast<size_t>(region.beg[0]), static_cast<size_t>(region.end[0])};
}

}  // namespace

OnigPattern::OnigPattern(std::string_view pattern, OnigSyntax syntax, const OnigLimits& limits)
    : compiled_(std::make_unique<Compiled>()) {
  if (pattern.size() > limits.pattern_bytes) {
    throw OnigError(
        fmt::format("it has {} bytes, more than {}", pattern.size(), limits.pattern_bytes));
  }
  const std::lock_guard lock(compile_mutex());
  OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
  onig_initialize(encodings, 1);
  onig_set_parse_depth_limit(kMaxNesting);
  const bool is_python = syntax == OnigSyntax::kPython;
  OnigErrorInfo info{};
  const int code =
      onig_new(&compiled_->regex, bytes(pattern.data()), bytes(pattern.data() + pattern.size()),
               is_python ? ONIG_OPTION_CAPTURE_GROUP : ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
               is_python ? ONIG_SYNTAX_PYTHON : ONIG_SYNTAX_ONIGURUMA, &info);
  compiled_->limits = limits;
  if (code == ONIG_NORMAL) return;
  compiled_->regex = nullptr;
  throw OnigError(error_text(code, &info));
}

OnigPattern::~OnigPattern() = default;
OnigPattern::OnigPattern(OnigPattern&&) noexcept = default;
OnigPattern& OnigPattern::operator=(OnigPattern&&) noexcept = default;

OnigSearch::OnigSearch(const OnigPattern& pattern)
    : state_(std::make_unique<State>(*pattern.compiled_)) {}
OnigSearch::~OnigSearch() = default;

std::optional<OnigSearch::Match> OnigSearch::find(std::string_view text, size_t from) {
  const char* const end = text.data() + text.size();
  const int at = onig_search_with_param(state_->regex, bytes(text.data()), bytes(end),
                                        bytes(text.data() + from), bytes(end), state_->region,
                                        ONIG_OPTION_NONE, state_->limits);
  return match_of(at, *state_->region);
}

std::optional<OnigSearch::Match> OnigSearch::match(std::string_view text) {
  const char* const end = text.data() + text.size();
  const int at =
      onig_match_with_param(state_->regex, bytes(text.data()), bytes(end), bytes(text.data()),
                            state_->region, ONIG_OPTION_NONE, state_->limits);
  return match_of(at, *state_->region);
}

}  // namespace sftrun
