#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/pass_graphs.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/observe/progress.h"
#include "sftrun/observe/tensorboard.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/loss_scale.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/schedule.h"
#include "sftrun/train/step_numbers.h"

/// The training loop. On CUDA, with optimizers whose update the device can decide about, a step is
/// queued before the host has read the numbers of the step before
/// (docs/decisions/0021-one-delayed-read.md).
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
  };  ///< not 0: stop with a checkpoint, after the steps that are queued by then
  std::function<void(const TrainEvent&)> on_event = [](const TrainEvent&) {};
  std::function<uint64_t()> peak_memory_bytes = [] { return uint64_t{0}; };
  /// Of this rank's GPU, in percent; nullopt where there is none, or nothing that says.
  std::function<std::optional<double>()> gpu_utilization = [] { return std::nullopt; };
  /// Where the first step of a run is not finite. What it throws is told instead.
  std::function<void()> look_at_base = [] {};
};

/// What `train.cuda_graphs` asks for.
model::GraphUse graph_use(config::CudaGraphs choice);

struct TrainerInputs {
  config::RunConfig config;  ///< resolved
  std::filesystem::path run_dir;
  model::Decoder* decoder = nullptr;
  parallel::Communicator* comm = nullptr;
  Batches* batches = nullptr;
  const data::Dataset* val = nullptr;  ///< null: none
  nlohmann::ordered_json identity;
  int64_t rendered_at_unix_s = 0;                 ///< see TrainState
  std::optional<weights::AdapterConfig> adapter;  ///< set when an adapter is trained
  std::optional<std::filesystem::path> resume_from;
  Hooks hooks;
};

struct TrainOutcome {
  int exit_code = 0;  ///< 0 done; 75 or 130 stopped on request, with a checkpoint
  int64_t first_step = 0, last_step = 0;
};

class Trainer {
 public:
  explicit Trainer(TrainerInputs inputs);
  ~Trainer();
  TrainOutcome run();
  uint64_t optimizer_bytes() const { return optimizer_->device_bytes(); }
  int64_t total_steps() const { return in_.batches->total_steps(); }
  /// Whether every step has a learning rate of 0.
  bool learns_nothing() const;

 private:
  struct QueuedStep;
  struct StepReport;
  struct MicroBatchSums;
  void queue_step(int64_t step);
  void queue_update(const QueuedStep& queued, const MicroBatchSums& sums);
  MicroBatchSums forward_backward(const data::StepBatch& global_batch, int64_t step);
  void finish_steps(size_t left_queued);
  void finish_before_error();
  StepReport finish_step(const QueuedStep& queued);
  StepReport read(const QueuedStep& queued);
  StepNumbers& numbers_of(int64_t step) { return numbers_[static_cast<size_t>(step % 2)]; }
  int64_t first_bin(int64_t micro_step, int64_t rank) const;
  int64_t not_finite_at(const RankNumbers& numbers, int64_t rank) const;
  bool overflows(const StepReport& report);
  double aux_coef() const;  // of the routers' load-balancing loss; 0: none
  double num_micro_batches(const data::StepBatch& global_batch) const;
  void require_finite(const StepReport& report, const data::StepBatch& global_batch,
                      int64_t step) const;
  std::string records_of(const data::StepBatch& global_batch, int64_t first, int64_t end) const;
  void require_finite_state(int64_t steps_done);
  std::string newest_saved() const;
  void tell(const char* phase, int64_t steps_done);
  void log_step(const QueuedStep& queued, const StepReport& report);
  void evaluate(int64_t steps_done);
  void save(int64_t steps_done);
  bool evaluation_due(int64_t step) const;
  bool save_due(int64_t step) const;
  bool is_main() const { return in_.comm->rank() == 0; }

  TrainerInputs in_;
  Schedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  LossScale loss_scale_;
  /// Numbers are read while the next step is queued, and the device decides about the update.
  bool reads_later_;
  model::PassGraphs passes_;
  at::Tensor gate_;                     // kernels::open_gate; undefined where the host decides
  std::array<StepNumbers, 2> numbers_;  // in turn
  std::vector<QueuedStep> queued_;      // of which nothing was read; at most two
  parallel::GradReducer reducer_;
  std::optional<Evaluator> evaluator_;
  CheckpointStore checkpoints_;
  observe::MetricsWriter metrics_;
  observe::EventWriter events_;
  observe::ProgressMeter progress_;
  TrainOutcome outcome_;
  TrainState state_;
  double save_every_s_ = 0;
  double last_save_s_ = 0;    // on the monotonic clock
  int64_t saved_step_ = 0;    // of the newest checkpoint; 0 for none
  int stop_exit_code_ = 0;    // the largest that any rank had in a step that was read
  bool save_wanted_ = false;  // by rank 0's clock in a step that was read, since the last save
  TrainEvent event_;          // as last told: a new phase keeps the last step's figures
};

}  // namespace sftrun::train
