#include "sftrun/observe/run_report.h"

#include <algorithm>

#include "sftrun/core/encoding.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/overwrite_file.h"
#include "sftrun/core/presence.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, int64_t PerCollective::*> kCollectives[] = {
    {"all_reduce", &PerCollective::all_reduce},
    {"all_gather", &PerCollective::all_gather},
    {"reduce_scatter", &PerCollective::reduce_scatter},
    {"all_to_all", &PerCollective::all_to_all},
    {"broadcast", &PerCollective::broadcast},
    {"send", &PerCollective::send},
    {"recv", &PerCollective::recv}};

Json to_json(const PerCollective& numbers) {
  Json json = Json::object();
  for (const auto& [name, member] : kCollectives) json[name] = numbers.*member;
  return json;
}

PerCollective per_collective(const Json& json) {
  PerCollective numbers;
  for (const auto& [name, member] : kCollectives) numbers.*member = json.value(name, int64_t{0});
  return numbers;
}

Json to_json(const RankBytes& bytes) {
  return {{"base", bytes.base},
          {"trainable", bytes.trainable},
          {"gradients", bytes.gradients},
          {"optimizer", bytes.optimizer},
          {"activations_peak", bytes.activations_peak}};
}

RankBytes bytes_from_json(const Json& bytes) {
  const auto size = [&](const char* key) { return bytes.value(key, uint64_t{0}); };
  return {.base = size("base"),
          .trainable = size("trainable"),
          .gradients = size("gradients"),
          .optimizer = size("optimizer"),
          .activations_peak = size("activations_peak")};
}

Json to_json(const RankReport& rank) {
  return {{"bytes", to_json(rank.bytes)},
          {"collectives", to_json(rank.collectives)},
          {"collective_bytes", to_json(rank.collective_bytes)},
          {"model_file_bytes", rank.model_file_bytes}};
}

RankReport rank_from_json(const Json& json) {
  return {.bytes = bytes_from_json(json.value("bytes", Json::object())),
          .collectives = per_collective(json.value("collectives", Json::object())),
          .collective_bytes = per_collective(json.value("collective_bytes", Json::object())),
          .model_file_bytes = json.value("model_file_bytes", uint64_t{0})};
}

}  // namespace

Json RunReport::to_json() const {
  Json json = {{"version", version},
               {"builds", builds},
               {"status", status},
               {"error", error.empty() ? Json() : Json(error)},
               {"backend", backend},
               {"comm_backend", comm_backend},
               {"strategy", strategy},
               {"axes", axes},
               {"dtype", dtype},
               {"base_model", base_model},
               {"base_model_path", base_model_path},
               {"base_model_fingerprint", base_model_fingerprint},
               {"base", base},
               {"dataset_fingerprint", dataset_fingerprint},
               {"config_fingerprint", config_fingerprint},
               {"world_size", world_size},
               {"device_names", device_names},
               {"first_step", first_step},
               {"last_step", last_step},
               {"evaluation", evaluation},
               {"best_evaluation", best},
               {"started_at", started_at},
               {"finished_at", nullptr},
               {"ranks", Json::array()}};
  if (finished_at) json["finished_at"] = *finished_at;
  for (const RankReport& rank : ranks) json["ranks"].push_back(observe::to_json(rank));
  if (!trackers.is_null()) json["trackers"] = trackers;
  if (planned) json["planned_bytes"] = observe::to_json(*planned);
  return json;
}

RunReport RunReport::from_json(const Json& json, const std::string& where) {
  try {
    RunReport report;
    report.version = json.value("version", "");
    report.builds = json.value("builds", Json::array());
    report.status = json.value("status", "");
    if (const auto it = json.find("error"); it != json.end() && !it->is_null())
      report.error = it->get<std::string>();
    report.backend = json.value("backend", "");
    report.comm_backend = json.value("comm_backend", "");
    report.strategy = json.value("strategy", "");
    report.axes = json.value("axes", Json());
    report.dtype = json.value("dtype", "");
    report.base_model = json.value("base_model", "");
    report.base_model_path = json.value("base_model_path", "");
    report.base_model_fingerprint = json.value("base_model_fingerprint", "");
    report.base = json.value("base", Json());
    report.dataset_fingerprint = json.value("dataset_fingerprint", "");
    report.config_fingerprint = json.value("config_fingerprint", "");
    report.world_size = json.value("world_size", 1);
    report.device_names = json.value("device_names", std::vector<std::string>());
    report.first_step = json.value("first_step", int64_t{0});
    report.last_step = json.value("last_step", int64_t{0});
    report.evaluation = json.value("evaluation", Json());
    report.best = json.value("best_evaluation", Json());
    report.started_at = json.value("started_at", 0.0);
    if (const auto it = json.find("finished_at"); it != json.end() && !it->is_null()) {
      report.finished_at = it->get<double>();
    }
    for (const Json& rank : json.value("ranks", Json::array())) {
      report.ranks.push_back(rank_from_json(rank));
    }
    report.trackers = json.value("trackers", Json());
    if (json.contains("planned_bytes")) report.planned = bytes_from_json(json["planned_bytes"]);
    return report;
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("not a run report: {}", json_reason(error)), where);
  }
}

void write_run_report(const std::filesystem::path& path, const RunReport& report) {
  // The text of an error may quote what is not UTF-8.
  write_file_atomically(
      path,
      report.to_json().dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

void rewrite_run_report(const std::filesystem::path& path, const RunReport& report) {
  try {
    write_run_report(path, report);
  } catch (const DeviceError&) {
    const std::string text =
        report.to_json().dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
    overwrite_file(path, text + "\n");
  }
}

RunReport read_run_report(const std::filesystem::path& path) {
  const Json json = Json::parse(read_utf8_file(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw DataError("not a run report: no JSON object", path.string());
  return RunReport::from_json(json, path.string());
}

std::filesystem::path run_directory_of(const std::filesystem::path& adapter) {
  for (const char* above : {"..", "../.."}) {
    const std::filesystem::path directory = (adapter / above).lexically_normal();
    if (leads_to_file(directory / "run.json")) return directory;
  }
  return {};
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterFile = "adapter_config.json";

bool holds_adapter(const fs::path& directory) {
  return has_optional_file(directory / kAdapterFile);
}

}  // namespace

fs::path newest_checkpoint(const fs::path& run_dir, const std::string& file) {
  std::vector<fs::path> checkpoints;  // names have equal length below a million steps
  for (const fs::path& entry : readable_entries_of(run_dir / "checkpoints")) {
    if (entry.filename().string().starts_with("step-") && has_optional_file(entry / file))
      checkpoints.push_back(entry);
  }
  if (checkpoints.empty()) return {};
  const auto comes_before = [](const fs::path& one, const fs::path& other) {
    const std::string a = one.filename().string(), b = other.filename().string();
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  };
  return *std::max_element(checkpoints.begin(), checkpoints.end(), comes_before);
}

fs::path adapter_at(const fs::path& path) {
  if (holds_adapter(path)) return path;
  if (holds_adapter(path / "adapter")) return path / "adapter";
  const fs::path checkpoint = newest_checkpoint(path, kAdapterFile);
  return checkpoint.empty() ? path : checkpoint;
}

std::string notice_of_result(const fs::path& named, const fs::path& adapter) {
  if (adapter == named || !leads_to_file(named / "run.json")) return {};
  try {
    if (read_run_report(named / "run.json").status == "done") return {};
  } catch (const DataError&) {
    return {};  // a damaged report does not keep anybody from the adapter
  }
  const fs::path checkpoint = newest_checkpoint(named, kAdapterFile);
  if (adapter != named / "adapter")
    return fmt::format("{} is not finished: using {}", named.string(), adapter.string());
  if (checkpoint.empty()) return {};
  return fmt::format(
      "{} was continued and is not finished: this is its earlier result; for the newest checkpoint "
      "give {}",
      named.string(), checkpoint.string());
}

}  // namespace sftrun::observe
