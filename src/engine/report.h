#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "session.h"
#include "sftrun/config/base_record.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/strategy.h"

/// run.json of a training run.
namespace sftrun::engine {

/// What the report says for the whole run.
struct ReportedRun {
  const config::RunConfig& config;  ///< resolved
  const Compute& compute;
  std::filesystem::path base_path;
  std::string base_fingerprint;
  const config::BaseRecord* base_record;  ///< null: full fine-tuning
  std::string dataset_fingerprint;
  const nlohmann::ordered_json& identity;
  std::string comm_backend;  ///< of the communicator
  std::string strategy;      ///< name of the strategy
  int world_size;
};
/// @return a report without status, steps, times and ranks
observe::RunReport report_of_run(const ReportedRun& run);

/// What the run's directory says of the run that goes on there; nullopt: it is new, or the report is
/// damaged.   @param resume_from a checkpoint; nullopt: a new run
std::optional<observe::RunReport> earlier_report(
    const std::filesystem::path& run_dir, const std::optional<std::filesystem::path>& resume_from);
/// The last evaluation of a report, if it is not after the step from which a run goes on; else null.
nlohmann::ordered_json evaluation_until(const observe::RunReport& report, int64_t step);

/// The memory of one rank.
/// @param base_bytes of all frozen tensors   @param peak_bytes of tensors on the device
/// @param static_bytes tensors on the device before the trainer was made, and what units get when
/// they are first used
observe::RankBytes rank_bytes(uint64_t base_bytes, const parallel::StoredBytes& stored,
                              uint64_t optimizer_bytes, uint64_t peak_bytes, uint64_t static_bytes);

/// "done", "interrupted" or "stopped", from the run's exit code.
std::string status_of_exit_code(int exit_code);

/// tuning.backend as run.json has it: "fused" or "bnb".
std::string backend_name(config::TuningBackend backend);

}  // namespace sftrun::engine
