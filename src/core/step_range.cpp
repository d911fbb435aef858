#include "sftrun/core/step_range.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "sftrun/core/error.h"

namespace sftrun {
namespace {

/// nullopt unless the whole text is a number of at least 1.
std::optional<int64_t> step_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && number >= 1 ? std::optional(number) : std::nullopt;
}

}  // namespace

StepRange parse_step_range(const std::string& text, const std::string& where) {
  if (text.empty()) return {};
  const size_t dash = text.find('-');
  const std::string_view all = text;
  const auto first = step_number(all.substr(0, dash)),
             last = dash == std::string::npos ? first : step_number(all.substr(dash + 1));
  if (first && last && *first <= *last) return {*first, *last};
  throw ConfigError(
      fmt::format("`{}` is neither a step nor a range of steps", text), where,
      "write a step (5) or the first and the last one (5-7); steps are numbered from 1");
}

}  // namespace sftrun
