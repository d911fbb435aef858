#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "commands.h"
#include "rank.h"
#include "session.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"

/// One rank of `sftrun doctor`: whether the ranks reach each other, and how fast.
namespace sftrun::engine {
namespace {

/// Every rank gives its number from 1. @return whether the sum is right in every element
bool sums_are_right(parallel::Communicator& comm, at::Device device) {
  constexpr int64_t kElements = 100'003;  // no multiple of a block
  const double n = comm.world_size();
  const at::Tensor values = at::full({kElements}, comm.rank() + 1.0, at::device(device));
  comm.world().all_reduce(values);
  const bool are_right = values.eq(n * (n + 1) / 2).all().item<bool>();
  comm.throw_if_failed();
  return are_right;
}

/// Mean seconds of an all-reduce, of the slowest rank.
/// @param rounds measured, after a tenth of them that are not
double mean_seconds(parallel::Communicator& comm, at::Device device, int64_t bytes, int rounds) {
  const at::Tensor values =
      at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::device(device));
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) comm.world().all_reduce(values);
    values[0].item();  // with CUDA the host waits here
  };
  run(1 + rounds / 10);
  comm.all_gather({0.0});  // all ranks begin together
  const double begin = monotonic_seconds();
  run(rounds);
  double slowest = 0;
  for (const auto& rank : comm.all_gather({(monotonic_seconds() - begin) / rounds}))
    slowest = std::max(slowest, rank[0]);
  return slowest;
}

/// Bytes that each rank sends per second if a ring is used: 2 (n - 1) / n times the size. So the
/// number can be compared with the speed of the link, for any number of ranks.
double wire_bandwidth(int64_t bytes, double seconds, int world_size) {
  const double n = world_size;
  return seconds > 0 ? 2 * (n - 1) / n * static_cast<double>(bytes) / seconds : 0;
}

}  // namespace

int run_all_reduce(const app::AllReduceRequest& request) {
  constexpr int64_t kMiB = 1 << 20, kSmall = sizeof(float);
  quiet_libtorch();
  Rank rank;
  try {
    const Compute compute =
        choose_compute(request.device, config::DTypeChoice::kFp32, rank.env().local_rank);
    config::ParallelConfig parallel;
    parallel.timeout = "60s";
    parallel.stall_after = "15s";
    if (!rank.connect(parallel, compute.device)) return rank.stop_exit_code();
    parallel::Communicator& comm = rank.comm();
    if (!sums_are_right(comm, compute.device))
      throw DeviceError(
          "an all-reduce gave a wrong sum",
          fmt::format("rank {} of {}, {}", comm.rank(), comm.world_size(), comm.backend()),
          "do not train on this machine: check the GPUs with `nvidia-smi -q` and the "
          "kernel's log with `dmesg`");
    const bool is_gpu = compute.device.is_cuda();
    const int64_t bytes = (is_gpu ? 256 : 32) * kMiB;
    const double seconds = mean_seconds(comm, compute.device, bytes, is_gpu ? 20 : 5);
    const double latency = mean_seconds(comm, compute.device, kSmall, 50);
    if (rank.is_main()) {
      const app::AllReduceAnswer answer{
          .world_size = comm.world_size(),
          .backend = comm.backend(),
          .device = device_name(compute.device),
          .bytes = bytes,
          .seconds = seconds,
          .bandwidth = wire_bandwidth(bytes, seconds, comm.world_size()),
          .latency_seconds = latency};
      write_file_atomically(request.result, app::json_of(answer).dump(2) + "\n");
    }
    comm.leave();
    return 0;
  } catch (...) {
    const Failure failure = report_failure({}, rank);
    rank.abandon(failure.text);
    return failure.code;
  }
}

}  // namespace sftrun::engine
