#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "sftrun/config/run_config.h"
#include "sftrun/core/activity.h"
#include "sftrun/launch/event_commands.h"
#include "sftrun/launch/status.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/launch/worker_env.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/train/events.h"
#include "sftrun/train/stop_agreement.h"

/// One rank of a run: its connection to the launcher and to the other ranks. A rank is a process,
/// or with a device map a thread of one.
namespace sftrun::engine {

/// Logs to the launcher, or without one to logs/rank-N.log and the console.
void configure_logging(const launch::WorkerEnv& env, const std::filesystem::path& run_dir);

/// Hides LibTorch's warnings about lost connections, which print C++ stack frames: errors are thrown
/// and reported anyway. A level that the user has set is kept.
void quiet_libtorch();

/// The name of c10d's backend: "gloo" or "nccl".
/// @throws ConfigError for NCCL on the CPU
std::string choose_comm_backend(config::CommBackend wanted, at::Device device);

/// A collective. Another build of the same version is warned of.
/// @throws ConfigError on every rank if one runs another version of the program than rank 0
void require_same_version(parallel::Communicator& comm, const std::string& version,
                          const std::string& build);

/// What a worker sends to its launcher for an event of training.
launch::Status status_of(const train::TrainEvent& event);

/// Outlives the rest of a run, so that a failure can still be reported through it.
class Rank {
 public:
  /// The rank of this process.
  Rank()
      : env_(launch::worker_env()),
        activity_(Activity::of_this_process()),
        stop_(std::make_shared<const launch::StopSignals>()),
        status_(std::make_shared<launch::StatusWriter>()) {
    activity_.answer_stack_requests();
  }
  /// A further rank of the process of `main`, for a thread. The launcher hears of `main` alone.
  /// @param gpu index of its GPU among those of the process
  Rank(const Rank& main, const launch::WorkerEnv& env, int gpu)
      : env_(env), gpu_(gpu), stop_(main.stop_) {}
  /// Makes the rank of a process the first one of several in it.
  void take_place(const launch::WorkerEnv& env, int gpu) {
    env_ = env;
    gpu_ = gpu;
  }

  const launch::WorkerEnv& env() const { return env_; }
  int gpu() const { return gpu_.value_or(env_.local_rank); }  ///< modulo their number
  parallel::Communicator& comm() { return comm_; }
  const parallel::Communicator& comm() const { return comm_; }
  Activity& activity() { return activity_; }
  bool is_main() const { return env_.rank == 0; }
  int stop_exit_code() const { return stop_->exit_code(); }  ///< 0: no stop was requested

  /// @return false if a stop was requested before all ranks were connected
  /// @throws CommError
  bool connect(const config::ParallelConfig& config, at::Device device);
  /// The exit code of a stop that any rank was asked for; 0: none. A collective.
  int stop_of_any_rank();
  /// Does work that a stop of this rank interrupts. A collective; the work itself communicates with
  /// no other rank.
  /// @return the exit code of a stop that any rank was asked for; 0: the work is done on all ranks
  int interruptible(const std::function<void()>& work);
  /// The same before training, with a message.
  int before_training(const std::function<void()>& work);
  /// The same for work in which some ranks communicate. It calls its argument as often on each of
  /// them, and a stop of one ends it on all of them in the same call.   @param gather among them
  int together(const train::StopAgreement::Gather& gather,
               const std::function<void(const std::function<void()>& stop_point)>& work);
  /// A collective.   @return what rank 0 gave
  int of_main(int value);
  /// Logs a stop before training.   @return its exit code
  int told_before_training(int stop_exit_code) const;
  int stop_before_training() {
    return before_training([] {});
  }

  void tell(const char* phase);  ///< "loading", "tokenizing"
  void tell(const train::TrainEvent& event);
  void tell(const launch::Status& status);
  /// Commands for the events of training. A failure is reported before they are waited for.
  void start_commands(launch::EventCommandOptions options) {
    commands_ = std::make_unique<launch::EventCommands>(std::move(options));
  }
  /// @pre start_commands was called
  launch::EventCommands& commands() { return *commands_; }

  /// Tells the other ranks why this one failed: under other launchers they keep running.
  void abandon(const std::string& why) noexcept { comm_.abandon(why); }
  /// Closes the connections, so that ranks that wait for this one fail.
  void disconnect() { comm_ = parallel::Communicator(); }

 private:
  launch::WorkerEnv env_;
  std::optional<int> gpu_;  // nullopt: one GPU for each process
  Activity activity_;
  parallel::Communicator comm_;
  std::shared_ptr<const launch::StopSignals> stop_;
  std::shared_ptr<launch::StatusWriter> status_;  ///< null: the launcher is not told
  std::unique_ptr<launch::EventCommands> commands_;
};

struct Failure;
struct FailureContext;
/// `report_failure` of an exception that may follow from a failed collective, because what the rank
/// has read from its GPU is not valid then: that failure is reported in its place.
Failure report_failure(const FailureContext& context, const Rank& rank);

}  // namespace sftrun::engine
