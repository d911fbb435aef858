#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/activity.h"
#include "sftrun/core/step_range.h"
#include "sftrun/data/dataset.h"
#include "sftrun/images/processor.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/events.h"
#include "sftrun/train/teacher.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/peft.h"

namespace sftrun::train {

/// What the trainer calls. Calls that a rank does not answer have defaults.
struct Hooks {
  std::function<int()> stop_exit_code = [] {
    return 0;
  };  ///< not 0: write a checkpoint and stop with this code, after the queued steps
  std::function<void(const TrainEvent&)> on_event = [](const TrainEvent&) {};
  std::function<uint64_t()> peak_memory_bytes = [] { return uint64_t{0}; };
  /// Utilisation of this rank's GPU in percent; nullopt without a GPU or without a reading.
  std::function<std::optional<double>()> gpu_utilization = [] { return std::nullopt; };
  /// Memory in use now: of the GPU, by all processes; resident on a CPU.
  std::function<uint64_t()> memory_used_bytes = [] { return uint64_t{0}; };
  /// Percent of one processor that this rank used since the last call.
  std::function<double()> cpu_utilization = [] { return 0.0; };
  /// Called if the first step of a run is not finite, to check the base weights. It may throw a
  /// more specific error.
  std::function<void()> look_at_base = [] {};
  /// Answers the validation prompts after `step` steps and scores the answers; empty: no answers.
  /// All ranks call it.   @param allowed_s seconds that it may take; infinite: no limit
  /// @param lost examples whose images or features cannot be read
  std::function<AnswerEvaluation(int64_t step, double allowed_s, const std::set<int64_t>& lost)>
      answer_validation;
  /// Called after the last step of this start, when a checkpoint is complete. It throws what has ended
  /// the run, if that was a failure of this rank between steps.
  std::function<void()> throw_failure = [] {};
  /// Called on rank 0, perhaps by another thread.
  std::function<void(const RunEvent&)> on_run_event = [](const RunEvent&) {};
  Activity* activity = nullptr;  ///< records what the loop does; may be null
};

/// What a run is trained with. All pointers must outlive the trainer.
struct TrainerInputs {
  config::RunConfig config;  ///< resolved
  std::filesystem::path run_dir;
  model::Decoder* decoder = nullptr;
  parallel::Communicator* comm = nullptr;
  parallel::Strategy* strategy = nullptr;  ///< of the decoder's parameters
  const Teacher* teacher = nullptr;        ///< beside the student; null: none
  Batches* batches = nullptr;
  int local_world_size = 1;            ///< ranks on this machine
  const data::Dataset* val = nullptr;  ///< null: no evaluation
  data::BinCost bin_cost;              ///< by which evaluation deals; empty: in order
  Build build;                         ///< of this program; the trainer sets its `from_step`
  nlohmann::ordered_json identity;
  int64_t rendered_at_unix_s = 0;                 ///< see TrainState
  std::optional<weights::AdapterConfig> adapter;  ///< set when an adapter is trained
  /// Chat template of the run, which checkpoints hold; nullopt: the model's own.
  std::optional<std::string> chat_template;
  nlohmann::ordered_json template_variables;            ///< of the run, which checkpoints hold, too
  images::ImageCaps image_caps;                         ///< the same
  std::optional<weights::EmbeddingSettings> embedding;  ///< the same; nullopt: it embeds nothing
  std::optional<std::filesystem::path> resume_from;
  StepRange profiled_steps = {};     ///< of which profile/ gets traces
  bool longest_batch_first = false;  ///< train.longest_batch_first, resolved
  std::vector<data::BinCost>
      tried_by;  ///< measures by which the largest micro-batch is tried then, beside the longest
  Hooks hooks;

  bool is_main() const { return comm->rank() == 0; }
  at::Device device() const { return decoder->options().device; }
};

}  // namespace sftrun::train
