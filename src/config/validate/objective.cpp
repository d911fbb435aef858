#include <fmt/format.h>

#include "choices.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

std::string advice_on_format(const ObjectiveInfo& objective) {
  switch (objective.form) {
    case ExampleForm::kPair:
      return fmt::format("remove format: {} reads records with \"chosen\" and \"rejected\"",
                         objective.name);
    case ExampleForm::kJudged:
      return fmt::format("remove format: {} reads answers behind a prompt, and their \"label\"",
                         objective.name);
    case ExampleForm::kAnswer:
      break;
  }
  return fmt::format(
      "for pairs of answers set train.objective to {}; for other records remove "
      "format",
      objectives_for(ExampleForm::kPair));
}

/// Objectives on pairs read records with two answers, those on one answer the others, and those on
/// judged answers all but texts.
void check_formats(Checks& checks) {
  const ObjectiveInfo& objective = checks.run().train.objective_info();
  const auto judge = [&](RecordFormat format, const char* key) {
    if (format == RecordFormat::kAuto || format_info(format).gives(objective.form)) return;
    checks.error(fmt::format("`{}` {} {}, but `train.objective` is {}", key,
                             std::string_view(key) == "data.format" ? "is" : "has the format",
                             word_of(format), objective.name),
                 {key, "train.objective"}, advice_on_format(objective));
  };
  judge(checks.run().data.format, "data.format");
  if (checks.trains())
    for (const DataSource& source : checks.run().data.train) judge(source.format, "data.train");
  for (const DataSource& source : checks.run().data.val) judge(source.format, "data.val");
}

}  // namespace

void check_objective(Checks& checks) {
  check_formats(checks);
  checks.error(objective_refusals(checks.run()));
}

}  // namespace sftrun::config::relations
