#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/train/checkpoint.h"

/// The checkpoint that a run starts from, and whether the run may continue it.
namespace sftrun::train {

/// The command line's choices.
struct ResumeOptions {
  std::string from = "auto";  ///< "auto", "never", or a checkpoint's directory
  bool overwrite = false;     ///< move an earlier run aside and start a new one
  bool allow_changed_data = false, allow_backend_change = false, allow_changed_length = false;
};

/// Finds the checkpoint on rank 0, for all ranks: they may see the directory at different moments.
/// With `overwrite` it moves an earlier run aside.
/// @return nullopt: start a new run
/// @throws ConfigError if there is no such checkpoint, if "never" finds checkpoints, or if the
/// directory holds the results of another run; DataError for damaged checkpoints
std::optional<std::filesystem::path> find_checkpoint(const ResumeOptions& options,
                                                     const std::filesystem::path& run_dir,
                                                     parallel::Communicator& comm);

/// The time that chat templates print. All ranks and all parts of a resumed run use the same, so
/// that the tokens do not change.
/// @param saved the checkpoint's state; null: a new run   @param now Unix time, seconds
int64_t rendering_time(const TrainState* saved, int64_t now, parallel::Communicator& comm);

/// @param identity of this run, with or without its weights
/// @throws ConfigError as require_same_identity
void require_resumable(const std::filesystem::path& checkpoint, const TrainState& saved,
                       const nlohmann::ordered_json& identity, const ResumeOptions& options);

/// The number of optimizer steps of a run.   @param train the data; null: they are streamed
int64_t num_steps(const config::RunConfig& config, const data::Dataset* train);

/// Accepts more epochs or steps than the run had when the checkpoint was written.
/// @throws ConfigError as require_length in run_length.h
void require_length(const std::filesystem::path& checkpoint, const TrainState& saved,
                    const config::RunConfig& config, const data::Dataset* train,
                    const ResumeOptions& options);

}  // namespace sftrun::train
