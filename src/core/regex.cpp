#include "sftrun/core/regex.h"

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

/// The pattern must be valid by itself: `a)|(b` is not, but would be within the added brackets.
OnigPattern compile(const std::string& pattern, PythonRegex::Matches how) {
  if (!is_valid_utf8(pattern)) throw OnigError("invalid UTF-8");
  if (pattern.find('\0') != std::string::npos) throw OnigError("a NUL byte");
  if (pattern.size() > kLimits.pattern_bytes)
    throw OnigError(
        fmt::format("it has {} bytes, more than {}", pattern.size(), kLimits.pattern_bytes));
  if (const std::string problem = python_syntax_problem(pattern); !problem.empty())
    throw OnigError(problem);
  OnigPattern alone(pattern, OnigSyntax::kPython, kLimits);
  if (how != PythonRegex::Matches::kWhole) return alone;
  OnigLimits limits = kLimits;
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
    fail(fmt::format("matching `{}` against {} takes too long: {}", excerpt(pattern_),
                     excerpt(name), error.what()),
         "remove nested repeats, such as (a*)*");
  }
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
