#include <string>

#include "idle_rules/rules.h"
#include "sftrun/config/trackers.h"

namespace sftrun::config {

IdleRules rules_of_trackers() {
  return {
      {{"output.tracking.project", "output.tracking.name"},
       [](const RunConfig& run, const RunFacts&) {
         return live_trackers(run.output).empty()
                    ? ": output.report_to has neither mlflow nor wandb nor trackio"
                    : "";
       }},
      {{"output.tracking.uri"},
       [](const RunConfig& run, const RunFacts&) {
         for (const TrackerRow* row : live_trackers(run.output))
           if (!row->uri_variable.empty()) return "";
         return " without mlflow in output.report_to";
       }},
  };
}

}  // namespace sftrun::config
