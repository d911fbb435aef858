#include "sftrun/config/idle_settings.h"
#include "validate/checks.h"

namespace sftrun::config {

void validate(const LoadedConfig& loaded, ConfigUse use, Problems& problems,
              std::vector<std::string>& warnings) {
  using namespace relations;
  Checks checks(loaded, use, problems, warnings);
  if (checks.needs_data()) check_names(checks);
  check_dtype(checks);
  check_tuning(checks);
  check_data(checks);
  check_objective(checks);
  check_optimizer(checks);
  if (checks.trains()) {
    check_evaluation(checks);
    check_answers_and_best(checks);
  }
  check_output(checks);
  check_callbacks(checks);
  check_schedule(checks);
  check_parallel(checks);
  for (const IdleSetting& idle : idle_settings(loaded)) warnings.push_back(idle.warning);
}

}  // namespace sftrun::config
