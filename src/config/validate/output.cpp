#include <fmt/format.h>

#include "sftrun/config/server_url.h"
#include "sftrun/config/trackers.h"
#include "sftrun/core/strings.h"
#include "validate/checks.h"

namespace sftrun::config::relations {
namespace {

std::string fix_of_tracker(const std::string& name) {
  if (name == "all") return "name the trackers: " + join(tracker_names(), ", ");
  if (name == "none") return "write `report_to: []`; metrics.jsonl is always written";
  const std::string near = nearest(name, tracker_names());
  return near.empty() ? "trackers: " + join(tracker_names(), ", ")
                      : fmt::format("did you mean `{}`?", near);
}

}  // namespace

void check_output(Checks& checks) {
  const OutputConfig& output = checks.run().output;
  for (const std::string& name : output.report_to)
    if (find_tracker(name) == nullptr)
      checks.error(fmt::format("`output.report_to` has the unknown tracker `{}`", excerpt(name)),
                   {"output.report_to"}, fix_of_tracker(name));
  const bool are_both = checks.is_set("output.tensorboard") && checks.is_set("output.report_to");
  if (are_both && output.tensorboard != reports_to(output, kTensorBoard))
    checks.error(fmt::format("`output.tensorboard` is {}, but `output.report_to` has {}",
                             output.tensorboard, output.tensorboard ? "no tensorboard" : "it"),
                 {"output.tensorboard", "output.report_to"},
                 "remove `output.tensorboard`: the list says it");
  const std::string& uri = output.tracking.uri;
  const std::string fault = uri.empty() ? "" : fault_of_server_url(uri, UrlEnd::kPath);
  if (!fault.empty())
    checks.error(
        fmt::format("`output.tracking.uri` is {}, {}", excerpt(without_credentials(uri)), fault),
        {"output.tracking.uri"},
        "write the address of an MLflow server (http://localhost:5000), and its name and "
        "password in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
}

}  // namespace sftrun::config::relations
