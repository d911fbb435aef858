#include "rank.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "commands.h"
#include "sftrun/core/build_id.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/parallel/agreement.h"
#include "sftrun/train/stop_agreement.h"

namespace sftrun::engine {

void configure_logging(const launch::WorkerEnv& env, const std::filesystem::path& run_dir) {
  log::Options options;
  if (env.supervised) {  // the launcher keeps and shows
    options.console = log::Level::kDebug;
  } else {
    make_directories(run_dir / "logs");
    options.console = env.rank == 0 ? log::Level::kInfo : log::Level::kError;
    options.file = run_dir / "logs" / fmt::format("rank-{}.log", env.rank);
    if (env.world_size > 1) options.rank = env.rank;
  }
  log::configure(options);
}

void quiet_libtorch() {
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
}

std::string choose_comm_backend(config::CommBackend wanted, at::Device device) {
  if (wanted == config::CommBackend::kNccl) {
    if (device.is_cpu()) {
      throw ConfigError("NCCL needs GPUs and this run computes on the CPU", "parallel.backend",
                        "use gloo or auto");
    }
    return "nccl";
  }
  if (wanted == config::CommBackend::kGloo) return "gloo";
  return device.is_cuda() ? "nccl" : "gloo";
}

launch::Status status_of(const train::TrainEvent& event) {
  launch::Status status;
  status.phase = launch::parse_phase(event.phase).value_or(launch::Phase::kTraining);
  status.step = event.step;
  status.total_steps = event.total_steps;
  status.loss = event.loss;
  status.tokens_per_second = event.tokens_per_second;
  status.eta_s = event.eta_s;
  status.memory_bytes = event.memory_bytes;
  status.memory_used_bytes = event.memory_used_bytes;
  status.gpu_percent = event.gpu_percent;
  status.cpu_percent = event.cpu_percent;
  return status;
}

void require_same_version(parallel::Communicator& comm, const std::string& version,
                          const std::string& build) {
  const auto differs = [&](const char* name, const std::string& own) {
    return parallel::find_disagreement(comm, name, own, [&](const std::string& first) {
      return fmt::format("{}, rank 0 runs {}", own, first);
    });
  };
  const char* fix = "install the same version on every machine";
  if (const auto other = differs("version", version)) {
    throw ConfigError(fmt::format("rank {} runs sftrun {}", other->rank, other->what), {}, fix);
  }
  if (const auto other = differs("build", build); other && comm.rank() == 0) {
    log::warn("rank {} runs another build of sftrun {} than rank 0 ({}): {}", other->rank, version,
              other->what, fix);
  }
}

namespace {

/// For a thread that hangs: the error is reported from another one.
void end_hanging_process(std::exception_ptr error) {
  int code = static_cast<int>(ExitCode::kWorkerFailed);
  try {
    std::rethrow_exception(std::move(error));
  } catch (...) {
    code = report_failure({}).code;
  }
  log::flush();
  ::_exit(code);
}

}  // namespace

Failure report_failure(const FailureContext& context, const Rank& rank) {
  try {
    rank.comm().throw_if_failed();
  } catch (...) {
    return report_failure(context);
  }
  return report_failure(context);
}

bool Rank::connect(const config::ParallelConfig& config, at::Device device) {
  try {
    comm_ = parallel::Communicator::connect(
        {.rank = env_.rank,
         .world_size = env_.world_size,
         .master_addr = env_.master_addr,
         .master_port = env_.master_port,
         .is_one_machine = env_.local_world_size == env_.world_size},
        choose_comm_backend(config.backend, device), device,
        {.timeout_s = parse_duration_s(config.timeout).value(),
         .stall_s = parse_duration_s(config.stall_after).value(),
         .reports_stalls = !(env_.supervised && env_.local_world_size == env_.world_size),
         .activity = &activity_,
         .stop_requested = [this] { return stop_->requested(); },
         .end_process = end_hanging_process});
    require_same_version(comm_, SFTRUN_VERSION, build_id());
    return true;
  } catch (const parallel::StoppedWaiting&) {
    return false;
  }
}

int Rank::stop_of_any_rank() {
  const parallel::CollectiveCounts counts = comm_.counts();
  double code = 0;
  for (const auto& rank : comm_.all_gather({static_cast<double>(stop_->exit_code())}))
    code = std::max(code, rank[0]);
  comm_.set_counts(counts);  // which are those of training
  return static_cast<int>(code);
}

int Rank::of_main(int value) {
  const parallel::CollectiveCounts counts = comm_.counts();
  const double given = comm_.all_gather({static_cast<double>(value)})[0][0];
  comm_.set_counts(counts);
  return static_cast<int>(given);
}

int Rank::interruptible(const std::function<void()>& work) {
  try {
    const Interruptible scope(launch::stop_requested);
    work();
  } catch (const Interrupted&) {
  }
  return stop_of_any_rank();
}

int Rank::before_training(const std::function<void()>& work) {
  return told_before_training(interruptible(work));
}

int Rank::together(const train::StopAgreement::Gather& gather,
                   const std::function<void(const std::function<void()>& stop_point)>& work) {
  const auto stop =
      std::make_shared<train::StopAgreement>(gather, [this] { return stop_exit_code(); });
  try {
    work([stop] {
      if (stop->next() != 0) throw Interrupted();
    });
  } catch (const Interrupted&) {
  }
  return stop_of_any_rank();
}

int Rank::told_before_training(int stop_exit_code) const {
  if (stop_exit_code != 0 && is_main())
    log::info("stopped before the first step; nothing was lost");
  return stop_exit_code;
}

void Rank::tell(const char* phase) {
  launch::Status status;
  status.phase = launch::parse_phase(phase).value_or(launch::Phase::kLoading);
  if (status_) status_->write(status);
  activity_.set_work(status.phase == launch::Phase::kTokenizing ? Work::kTokenizing
                                                                : Work::kLoading);
}

void Rank::tell(const train::TrainEvent& event) {
  tell(status_of(event));
}

void Rank::tell(const launch::Status& status) {
  if (status_) status_->write(status);
}

}  // namespace sftrun::engine
