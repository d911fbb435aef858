#include "starters.h"

#include <array>
#include <utility>

#include "sftrun/config/server_url.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"

namespace sftrun::track {
namespace {

struct Starter {
  std::string_view name;  // of config::TrackerRow
  /// What is missing, and what to do; empty: nothing.
  std::string (*missing)(const TrackedRun& run);
  std::unique_ptr<Tracker> (*start)(TrackedRun run);
};

std::string missing_server(const TrackedRun& run) {
  if (run.uri.empty())
    return "no server is named: set output.tracking.uri or MLFLOW_TRACKING_URI to its address";
  const std::string fault = config::fault_of_server_url(run.uri, config::UrlEnd::kPath);
  if (fault.empty()) return {};
  return fmt::format("MLFLOW_TRACKING_URI is {}, {}: a running server is needed",
                     config::without_credentials(run.uri), fault);
}

/// Whether Python has the package is known when the exporter runs.
std::string nothing_missing(const TrackedRun&) {
  return {};
}

constexpr auto kStarters = std::to_array<Starter>({{"mlflow", missing_server, make_mlflow},
                                                   {"wandb", nothing_missing, make_exporter},
                                                   {"trackio", nothing_missing, make_exporter}});

}  // namespace

std::unique_ptr<Tracker> start_tracker(TrackedRun run) {
  for (const Starter& starter : kStarters) {
    if (starter.name != run.row->name) continue;
    const std::string missing = starter.missing(run);
    if (missing.empty()) return starter.start(std::move(run));
    log::warn("{} gets no metrics: {}; to send them when the run has ended: {} {}", run.row->title,
              missing, run.row->send_later, run.run_dir);
    return nullptr;
  }
  invariant_failed(__FILE__, __LINE__, fmt::format("tracker {} has no starter", run.row->name));
}

}  // namespace sftrun::track
