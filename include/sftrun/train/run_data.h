#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/small_data.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/identity.h"

/// The data of a run, and the batch sizes that depend on it.
namespace sftrun::train {

struct RunData {
  std::optional<data::Dataset> train, val;  ///< train: nullopt if it is streamed
  std::unique_ptr<Batches> batches;         ///< null until make_batches, unless data is streamed
  std::string fingerprint;                  ///< of the training data
  NamedFingerprints parts;                  ///< of each training data set or file

  const data::Dataset* train_or_null() const { return train ? &*train : nullptr; }
  const data::Dataset* val_or_null() const { return val ? &*val : nullptr; }
  std::string val_fingerprint() const { return val ? val->fingerprint() : ""; }
};

/// Reads and tokenises the data sets; a streamed one is opened.
/// @param position of a checkpoint in streamed data; null: the start
/// @throws as data::load_dataset, with the errors of all data sets together
RunData load_run_data(const config::RunConfig& config, const data::TextModel& text, int num_threads,
                      const nlohmann::ordered_json& position);

/// Divides data that was read completely into batches.   @param config with all batch sizes
/// @param cost by which steps are dealt to the ranks; empty: in order
void make_batches(RunData& data, const config::RunConfig& config, data::BinCost cost = {});

/// Batch sizes as they were asked for.
struct BatchRequest {
  bool steps_are_auto = false;        ///< neither global_batch_size nor grad_accum was given
  std::optional<int64_t> batch_size;  ///< nullopt: auto
  int64_t max_micro_batch = 1;        ///< for an automatic batch size
  bool eval_follows = false;          ///< eval_batch_size: auto

  /// Whether the user has chosen one of the sizes.
  bool asks_for_batch() const { return !steps_are_auto || batch_size; }
};

/// Chooses train.global_batch_size and data.bin_tokens, as far as they are automatic, so that a
/// small data set has enough optimizer steps. A resumed run keeps its sizes.
/// @param saved the checkpoint's identity; null: a new run
/// @return a notice for the user; empty: none
/// @throws ConfigError if the checkpoint's batch cannot be divided into `dp_size` parts
std::string fit_batches_to_data(config::RunConfig& config, const BatchRequest& request,
                                const data::EpochSize& epoch, int dp_size,
                                const nlohmann::ordered_json& saved);

}  // namespace sftrun::train
