#include "sftrun/config/problem.h"

#include <utility>

namespace sftrun::config {
namespace {

/// The reports of all problems, without the first "error: ", which Error puts there itself.
std::string report(const Problems& problems) {
  constexpr std::string_view kPrefix = "error: ";
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += "\n";
    text += Error(ExitCode::kUsage, problem.message, problem.where, problem.fix).what();
  }
  return text.substr(kPrefix.size());
}

}  // namespace

ConfigProblems::ConfigProblems(Problems all) : ConfigError(report(all)), problems(std::move(all)) {}

void throw_if_any(const Problems& problems) {
  if (!problems.empty()) throw ConfigProblems(problems);
}

}  // namespace sftrun::config
