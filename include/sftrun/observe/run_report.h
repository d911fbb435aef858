#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// run.json of a run directory: what ran, on what, and what it cost.
namespace sftrun::observe {

/// Bytes of one rank by purpose.
struct RankBytes {
  uint64_t base = 0, trainable = 0, gradients = 0, optimizer = 0, activations_peak = 0;
};
/// How often one rank took part in each collective.
struct CollectiveCounts {
  int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0, broadcast = 0, send = 0, recv = 0;
};
struct RankReport {
  RankBytes bytes;
  CollectiveCounts collectives;
};

struct RunReport {
  std::string version;          ///< of sftrun
  std::string backend;          ///< tuning.backend as resolved: "fused", "bnb"
  std::string comm_backend;     ///< "nccl", "gloo"; empty on one process
  std::string strategy;         ///< as resolved: "single", "ddp", …
  std::string dtype;            ///< of computation
  std::string base_model;       ///< name or path as configured
  std::string base_model_path;  ///< where it lay: an absolute path
  std::string base_model_fingerprint, dataset_fingerprint, config_fingerprint;
  nlohmann::ordered_json base = nullptr;  ///< config::HeldBase; null: every weight trains
  int world_size = 1;
  std::vector<std::string> device_names;  ///< per rank
  std::string status;                     ///< "running", "done", "stopped", "interrupted", "failed"
  int64_t first_step = 0, last_step = 0;  ///< of this process's part of the run; the resumed
                                          ///< checkpoint's step and the last done
  double started_at = 0;                  ///< Unix time, seconds
  std::optional<double> finished_at;
  std::vector<RankReport> ranks;

  nlohmann::ordered_json to_json() const;
  /// Keys that are missing keep their defaults. @throws DataError naming `where` for values of the
  /// wrong type.
  static RunReport from_json(const nlohmann::ordered_json& json, const std::string& where);
};

/// Writes atomically.
void write_run_report(const std::filesystem::path& path, const RunReport& report);
/// @throws DataError if the file is missing or is not a run report.
RunReport read_run_report(const std::filesystem::path& path);

/// The directory of the run that left an adapter, in its `adapter` or a checkpoint; empty: none is
/// around it.
std::filesystem::path run_directory_of(const std::filesystem::path& adapter);
/// The other way: where an adapter lies that is named by its own directory or by that of its run,
/// which may have come as far as checkpoints only (the newest, then). Paths to anything else stay.
std::filesystem::path adapter_at(const std::filesystem::path& path);

}  // namespace sftrun::observe
