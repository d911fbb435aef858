#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model_division.h"
#include "rank.h"
#include "session.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/step_range.h"
#include "sftrun/data/text_model.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/plan/teacher.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/run_data.h"
#include "sftrun/train/teacher.h"
#include "sftrun/weights/checkpoint.h"
#include "weight_hashing.h"

/// What a training run needs before its first step: data, model, strategy.
namespace sftrun::engine {

/// A model beside the run's own.
struct LoadedTeacher {
  LoadedModel model;
  std::optional<train::Teacher> teacher;

  /// Bytes of its weights on this rank's device.
  uint64_t device_bytes() const;
};

/// What is prepared before the first step.
struct PreparedRun {
  config::RunConfig config;          ///< resolved
  std::filesystem::path model_path;  ///< of config.model.name, which may be a name on a hub
  Compute compute;
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::optional<data::TextModel> text;       ///< tokenizer and template
  std::optional<std::string> chat_template;  ///< of model.chat_template
  bool leaves_template_unused = false;       ///< on rank 0, which tells users of the result
  int64_t rendered_at_unix_s = 0;
  std::optional<std::filesystem::path> resume_from;
  nlohmann::ordered_json data_position;  ///< of the checkpoint; null: it has none
  StepRange profiled_steps;
  train::RunData data;
  bool has_images = false;     ///< its records have images
  bool deals_by_cost = false;  ///< its steps: a run with images, unless an earlier version began it
  nlohmann::ordered_json identity;
  std::string base_fingerprint;
  std::unique_ptr<ModelDivision> division;  ///< when the ranks are connected
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<parallel::Strategy> strategy;
  std::shared_ptr<const plan::TeacherUse> teacher_use;  ///< null: no model is beside the student
  std::unique_ptr<LoadedTeacher> teacher;               ///< the same, when it is loaded
  bool tries_longest_batch = false;                     ///< now
  bool asks_for_batch = false;                          ///< train::BatchRequest::asks_for_batch

  std::filesystem::path run_dir() const { return config.output.dir; }
};

/// The values of `auto` that depend on the model's files.
void resolve_auto(config::RunConfig& config, const weights::Checkpoint& checkpoint);
/// Warns that trained weights are dequantised.
void warn_of_unpacking(const config::TuningConfig& tuning, const weights::Checkpoint& checkpoint);

/// Tokenises the data with the model's tokenizer and template, and divides it into batches.
/// @param saved the checkpoint's state; null: a new run
void prepare_data(PreparedRun& run, const train::TrainState* saved,
                  const train::BatchRequest& batches, Rank& rank);
/// Loads the decoder, divided as the strategy says, with the adapter that the run starts from. A
/// checkpoint is loaded later. All ranks call it.   @return 0, or the exit code of a stop
int load_model(PreparedRun& run, Rank& rank);
/// Completes the identity by the weights, whose bytes were read while the model was loaded.
/// @return false if rank 0 was asked to stop meanwhile
bool add_weights(PreparedRun& run, WeightHashing& hashing, Rank& rank);

}  // namespace sftrun::engine
