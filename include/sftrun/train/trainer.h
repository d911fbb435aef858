#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"
#include "sftrun/model/decoder.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/observe/progress.h"
#include "sftrun/observe/tensorboard.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/schedule.h"

/// The training loop.
namespace sftrun::train {

/// What the loop tells whoever watches.
struct TrainEvent {
  const char* phase = "training";  ///< "loading", "tokenizing", "training", "evaluating", "saving"
  int64_t step = 0, total_steps = 0;
  std::optional<double> loss, tokens_per_second, eta_s;
  std::optional<uint64_t> memory_bytes;
};
struct Hooks {
  std::function<int()> stop_exit_code = [] {
    return 0;
  };  ///< not 0: stop after this step with a checkpoint
  std::function<void(const TrainEvent&)> on_event = [](const TrainEvent&) {};
  std::function<uint64_t()> peak_memory_bytes = [] { return uint64_t{0}; };
};

struct TrainerInputs {
  config::RunConfig config;  ///< resolved
  std::filesystem::path run_dir;
  model::Decoder* decoder = nullptr;
  parallel::Communicator* comm = nullptr;
  const data::Dataset* train = nullptr;
  const data::Dataset* val = nullptr;  ///< null: none
  nlohmann::ordered_json identity;
  int64_t rendered_at_unix_s = 0;                 ///< see TrainState
  std::optional<weights::AdapterConfig> adapter;  ///< set when an adapter is trained
  std::optional<std::filesystem::path> resume_from;
  Hooks hooks;
};

/// Where an optimizer step lies in the data.
struct StepPosition {
  int64_t epoch = 0, step_in_epoch = 0, steps_in_epoch = 0;
};

/// Optimizer steps of a run: epochs (the last may be a fraction) or max_steps.
class StepPlan {
 public:
  StepPlan(const data::BatchPlan& plan, double epochs, std::optional<int64_t> max_steps);
  int64_t total_steps() const { return total_steps_; }
  StepPosition position(int64_t step) const;

 private:
  std::vector<int64_t> steps_in_epoch_;  // of each epoch, whole
  int64_t total_steps_ = 0;
};

struct TrainOutcome {
  int exit_code = 0;  ///< 0 done; 75 or 130 stopped on request, with a checkpoint
  int64_t first_step = 0, last_step = 0;
  std::optional<double> first_eval_loss, last_eval_loss;
};

class Trainer {
 public:
  explicit Trainer(TrainerInputs inputs);
  TrainOutcome run();
  uint64_t optimizer_bytes() const { return optimizer_.bytes(); }
  int64_t total_steps() const { return steps_.total_steps(); }

 private:
  struct StepReport;
  StepReport train_step(int64_t step);
  double forward_backward(const std::vector<data::Bin>& global_batch, int64_t label_tokens,
                          int64_t step, StepReport& report);
  void gather(StepReport& report, double loss_sum);
  void require_finite(const StepReport& report, const std::vector<data::Bin>& global_batch,
                      int64_t step) const;
  std::string lines_of(const std::vector<data::Bin>& global_batch, int64_t first,
                       int64_t end) const;
  void require_finite_state(int64_t steps_done);
  std::string newest_saved() const;
  void tell(const char* phase, int64_t steps_done);
  void log_step(int64_t step, const StepReport& report);
  void evaluate(int64_t steps_done);
  void save(int64_t steps_done);
  bool evaluation_due(int64_t steps_done, const StepPosition& position) const;
  bool is_main() const { return in_.comm->rank() == 0; }

  TrainerInputs in_;
  data::BatchPlan plan_;
  StepPlan steps_;
  Schedule schedule_;
  AdamW optimizer_;
  parallel::GradReducer reducer_;
  std::optional<Evaluator> evaluator_;
  CheckpointStore checkpoints_;
  observe::MetricsWriter metrics_;
  observe::EventWriter events_;
  observe::ProgressMeter progress_;
  TrainOutcome outcome_;
  TrainState state_;
  double save_every_s_ = 0;
  double last_save_s_ = 0;  // on the monotonic clock
  int64_t saved_step_ = 0;  // of the newest checkpoint; 0 for none
  TrainEvent event_;        // as last told: a new phase keeps the last step's figures
};

}  // namespace sftrun::train
