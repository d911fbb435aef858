#include "sftrun/config/trackers.h"

namespace sftrun::config {

std::vector<std::string> tracker_names() {
  std::vector<std::string> names;
  for (const TrackerRow& row : kTrackers) names.emplace_back(row.name);
  return names;
}

std::vector<const TrackerRow*> live_trackers(const OutputConfig& output) {
  std::vector<const TrackerRow*> rows;
  for (const TrackerRow& row : kTrackers)
    if (row.is_live() && reports_to(output, row.name)) rows.push_back(&row);
  return rows;
}

bool reports_to(const OutputConfig& output, std::string_view tracker) {
  return std::ranges::find(output.report_to, tracker) != output.report_to.end();
}

void settle_trackers(LoadedConfig& loaded) {
  OutputConfig& output = loaded.config.output;
  const bool has_list = loaded.places.contains("output.report_to");
  if (!has_list && !output.tensorboard) std::erase(output.report_to, kTensorBoard);
  if (has_list && !loaded.places.contains("output.tensorboard"))
    output.tensorboard = reports_to(output, kTensorBoard);
}

}  // namespace sftrun::config
