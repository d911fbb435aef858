#include "sftrun/config/problem.h"

#include <algorithm>
#include <span>
#include <utility>

#include "sftrun/core/plural.h"
#include "sftrun/core/read_limits.h"

namespace sftrun::config {

std::string report_of(const Problems& problems) {
  constexpr std::string_view kPrefix = "error: ";
  std::string text;
  const size_t shown = std::min(problems.size(), ReadLimits().problems);
  for (const Problem& problem : std::span(problems).first(shown)) {
    if (!text.empty()) text += "\n";
    text += Error(ExitCode::kUsage, problem.message, problem.where, problem.fix).what();
  }
  if (shown < problems.size())
    text += fmt::format("\nerror: and {}", counted(problems.size() - shown, "more problem"));
  return text.substr(kPrefix.size());
}

ConfigProblems::ConfigProblems(Problems all)
    : ConfigError(report_of(all)), problems(std::move(all)) {}

DataProblems::DataProblems(Problems all) : DataError(report_of(all)), problems(std::move(all)) {}

void throw_if_any(const Problems& problems) {
  if (!problems.empty()) throw ConfigProblems(problems);
}

}  // namespace sftrun::config
