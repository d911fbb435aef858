#include "sftrun/core/regex.h"

#include <algorithm>

#include "sftrun/core/onig.h"
#include "sftrun/core/python_syntax.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

constexpr OnigLimits kLimits{.pattern_bytes = 64 << 10,
                             .stack_entries = 1'000'000,
                             .match_steps = 1'000'000,
                             .search_steps = 1'000'000};

constexpr unsigned long kStepsOfText = 100'000'000;

/// The pattern must be valid by itself: `a)|(b` is not, but would be within the added brackets.
OnigPattern compile(const std::string& pattern, PythonRegex::Matches how) {
  if (!is_valid_utf8(pattern)) throw OnigError("invalid UTF-8");
  if (pattern.find('\0') != std::string::npos) throw OnigError("a NUL byte");
  if (pattern.size() > kLimits.pattern_bytes)
    throw OnigError(
        fmt::format("it has {} bytes, more than {}", pattern.size(), kLimits.pattern_bytes));
  if (const std::string problem = python_syntax_problem(pattern); !problem.empty())
    throw OnigError(problem);
  OnigLimits limits = kLimits;
  if (how == PythonRegex::Matches::kAll) limits.match_steps = limits.search_steps = kStepsOfText;
  OnigPattern alone(pattern, OnigSyntax::kPython, limits);
  if (how != PythonRegex::Matches::kWhole) return alone;
  limits.pattern_bytes += 8;
  return {"(?:" + pattern + ")\\Z", OnigSyntax::kPython, limits};
}

}  // namespace

struct PythonRegex::Compiled {
  OnigPattern pattern;
};

PythonRegex::PythonRegex(std::string pattern, Matches how, std::string where, ExitCode blame)
    : pattern_(std::move(pattern)), where_(std::move(where)), how_(how), blame_(blame) {
  try {
    compiled_ = std::make_shared<const Compiled>(Compiled{compile(pattern_, how)});
  } catch (const OnigError& error) {
    fail(fmt::format("`{}` is not a regular expression: {}", excerpt(pattern_), error.what()),
         "write it as for Python's re; a dot of a name is \\., a bracket \\(");
  }
}

bool PythonRegex::matches(std::string_view name) const {
  try {
    OnigSearch search(compiled_->pattern);
    return (how_ == Matches::kSearch ? search.find(name) : search.match(name)).has_value();
  } catch (const OnigError& error) {
    fail_slow(name, error.what());
  }
}

std::vector<PythonRegex::Span> PythonRegex::all_in(std::string_view text) const {
  std::vector<Span> spans;
  try {
    OnigSearch search(compiled_->pattern);
    size_t from = 0;
    while (from < text.size()) {
      const auto match = search.find(text, from);
      if (!match) break;
      if (match->begin < match->end) spans.push_back({match->begin, match->end});
      from = std::max(match->end, match->begin + 1);
      while (from < text.size() && is_continuation_byte(text[from])) ++from;
    }
  } catch (const OnigError& error) {
    fail_slow(text, error.what());
  }
  return spans;
}

void PythonRegex::fail_slow(std::string_view text, const std::string& reason) const {
  fail(fmt::format("matching `{}` against {} takes too long: {}", excerpt(pattern_), excerpt(text),
                   reason),
       "remove nested repeats, such as (a*)*");
}

void PythonRegex::fail(const std::string& message, const std::string& fix) const {
  if (blame_ == ExitCode::kData) throw DataError(message, where_, fix);
  throw ConfigError(message, where_, fix);
}

std::string regex_problem(const std::string& text) {
  try {
    compile(text, PythonRegex::Matches::kSearch);
    return {};
  } catch (const OnigError& error) {
    return error.what();
  }
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '.') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace sftrun
