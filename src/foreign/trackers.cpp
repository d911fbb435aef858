#include "trackers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sftrun/config/trackers.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

constexpr std::string_view kReportTo = "output.report_to";

Value list_of_trackers(const std::vector<std::string>& names, const SourceKey& key) {
  Value list{.kind = Value::Kind::kList};
  for (const std::string& name : names) list.items.push_back(Value::scalar(name));
  list.mark = key.value.mark;
  return list;
}

/// Keys of Axolotl, each of which turns a tracker on.
struct TrackerKeys {
  std::string_view tracker;
  std::array<const char*, 2> keys;
};
constexpr auto kTrackerKeys =
    std::to_array<TrackerKeys>({{"tensorboard", {"use_tensorboard", ""}},
                                {"mlflow", {"use_mlflow", "mlflow_experiment_name"}},
                                {"wandb", {"use_wandb", "wandb_project"}},
                                {"trackio", {"use_trackio", "trackio_project_name"}}});

bool is_used(const Conversion& conversion, const TrackerKeys& row) {
  return std::ranges::any_of(row.keys, [&](const char* name) {
    const auto key = conversion.find(name);
    return key && !is_off(key->value);
  });
}

std::vector<std::string> names_in(const Value& value) {
  std::vector<std::string> names;
  if (value.kind == Value::Kind::kScalar) names = {ascii_lower(value.text)};
  for (const Value& item : value.items) names.push_back(ascii_lower(item.text));
  return names;
}

/// Names and addresses are for trackers that metrics are sent to.
void set_tracking(Conversion& conversion, const SourceKey& key, std::string_view field) {
  std::vector<std::string> names;
  if (const auto list = conversion.find("report_to")) names = names_in(list->value);
  const auto is_named = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool is_live =
      is_named("all") || std::ranges::any_of(config::kTrackers, [&](const auto& row) {
        return row.is_live() && is_named(row.name);
      });
  const bool is_on = std::ranges::any_of(
      kTrackerKeys, [&](const TrackerKeys& row) { return is_used(conversion, row); });
  if (!is_live && !is_on)
    return conversion.note_no_meaning(key, "only used with a tracker that metrics are sent to");
  if (conversion.has(field) && conversion.given_text(field) != key.value.text)
    return conversion.note_lost(key, fmt::format("all trackers have the same `{}`", field));
  conversion.set(key, field, key.value);
}

}  // namespace

void set_report_to(Conversion& conversion, const SourceKey& key) {
  std::vector<std::string> ours, others;
  for (const std::string& name : names_in(key.value)) {
    if (name == "none") continue;
    if (name == "all")
      for (const config::TrackerRow& row : config::kTrackers)
        if (row.is_live() || row.name == config::kTensorBoard) ours.emplace_back(row.name);
    if (config::find_tracker(name) != nullptr) ours.push_back(name);
    if (name == "all")
      conversion.note_lost(key,
                           "a tracker whose package or server is not there gets a warning and no "
                           "metrics (docs/experiment-trackers.md)");
    else if (config::find_tracker(name) == nullptr)
      others.push_back(name);
  }
  conversion.set(key, kReportTo, list_of_trackers(ours, key));
  if (!others.empty())
    conversion.note_lost(key, fmt::format("{}: not supported; docs/experiment-trackers.md shows "
                                          "which trackers are",
                                          join(others, ", ")));
}

void set_used_trackers(Conversion& conversion, const SourceKey& key) {
  std::vector<std::string> names;
  for (const TrackerKeys& row : kTrackerKeys)
    if (is_used(conversion, row)) names.emplace_back(row.tracker);
  if (!names.empty()) conversion.set(key, kReportTo, list_of_trackers(names, key));
}

void set_tracked_project(Conversion& conversion, const SourceKey& key) {
  // With Axolotl it also turns the tracker on.
  const bool turns_on = std::ranges::any_of(
      kTrackerKeys, [&](const TrackerKeys& row) { return key.name == row.keys[1]; });
  if (turns_on) set_used_trackers(conversion, key);
  set_tracking(conversion, key, "output.tracking.project");
}

void set_tracked_name(Conversion& conversion, const SourceKey& key) {
  set_tracking(conversion, key, "output.tracking.name");
}

void set_tracking_uri(Conversion& conversion, const SourceKey& key) {
  set_tracking(conversion, key, "output.tracking.uri");
}

}  // namespace sftrun::foreign
