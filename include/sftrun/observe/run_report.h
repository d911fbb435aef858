#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// run.json of a run directory: settings, devices, status and cost of a run.
namespace sftrun::observe {

/// Memory of one rank by purpose.
struct RankBytes {
  uint64_t base = 0, trainable = 0, gradients = 0, optimizer = 0, activations_peak = 0;
  uint64_t total() const { return base + trainable + gradients + optimizer + activations_peak; }
};
/// A number for each collective of one rank.
struct PerCollective {
  int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0, all_to_all = 0, broadcast = 0,
          send = 0, recv = 0;
};
struct RankReport {
  RankBytes bytes;
  PerCollective collectives;       ///< calls
  PerCollective collective_bytes;  ///< bytes that this rank passed to them
  uint64_t model_file_bytes = 0;   ///< of the model's files, read or used in place
};

struct RunReport {
  std::string version;          ///< of sftrun
  std::string backend;          ///< tuning.backend as resolved: "fused", "bnb"
  std::string comm_backend;     ///< "nccl", "gloo"; empty for a single process
  std::string strategy;         ///< as resolved: "single", "ddp", …
  nlohmann::ordered_json axes;  ///< ranks along each, by config::AxisRow::name
  /// Builds of the program that computed steps of the run, as {version, build, from_step}
  nlohmann::ordered_json builds = nlohmann::ordered_json::array();
  std::string dtype;            ///< compute dtype
  std::string base_model;       ///< name or path as configured
  std::string base_model_path;  ///< absolute path of its files
  std::string base_model_fingerprint, dataset_fingerprint, config_fingerprint;
  nlohmann::ordered_json base = nullptr;  ///< config::BaseRecord; null: full fine-tuning
  int world_size = 1;
  std::vector<std::string> device_names;  ///< per rank
  std::string status;                     ///< "running", "done", "stopped", "interrupted", "failed"
  std::string error;  ///< why it failed, or was killed, as on the terminal; empty: neither
  /// Of this process: the resumed checkpoint's step, and the last step done
  int64_t first_step = 0, last_step = 0;
  nlohmann::ordered_json evaluation = nullptr;  ///< the last one's line of metrics.jsonl
  nlohmann::ordered_json best = nullptr;        ///< {metric, value, step} of the best evaluation
  double started_at = 0;                        ///< Unix time, seconds
  std::optional<double> finished_at;
  std::vector<RankReport> ranks;
  nlohmann::ordered_json trackers = nullptr;  ///< by name: the tracked run; null: there are none
  std::optional<RankBytes> planned;  ///< estimated before the first step, for the fullest rank

  nlohmann::ordered_json to_json() const;
  /// Missing keys keep their defaults. @throws DataError naming `where` for values of the wrong
  /// type
  static RunReport from_json(const nlohmann::ordered_json& json, const std::string& where);
};

/// Writes the file atomically.
void write_run_report(const std::filesystem::path& path, const RunReport& report);
/// Writes an existing file anew: atomically, or on a full disk in the space that it has.
void rewrite_run_report(const std::filesystem::path& path, const RunReport& report);
/// @throws DataError if the file is missing or not a run report
RunReport read_run_report(const std::filesystem::path& path);

/// The directory of the run that wrote an adapter, given the path of its `adapter` or of a
/// checkpoint; empty: not in a run directory.
std::filesystem::path run_directory_of(const std::filesystem::path& adapter);
/// A run's newest folder with `file` below checkpoints/; empty: none.
std::filesystem::path newest_checkpoint(const std::filesystem::path& run_dir,
                                        const std::string& file = "state.json");
/// The inverse: the adapter's directory for a path to it or to its run. If the run has checkpoints
/// only, the newest one. Other paths are returned unchanged.
std::filesystem::path adapter_at(const std::filesystem::path& path);

/// What a user of a run directory's adapter should know: the run is not finished, or it was
/// continued after this result was written. Empty where there is nothing to say.
/// @param named as the user named it   @param adapter what `adapter_at` found there
std::string notice_of_result(const std::filesystem::path& named,
                             const std::filesystem::path& adapter);

}  // namespace sftrun::observe
