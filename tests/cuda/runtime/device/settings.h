#pragma once

#include <cstddef>
#include <string>

/// The machine that is stood in for, as the environment describes it.
namespace stand_in {

/// What happens to NCCL on one rank, at one of its calls.
struct Fault {
  /// SFTRUN_STANDIN_NCCL_FAULT, as in "error@2:17": the kind, the rank, and which of its collectives
  /// and messages, from 1. "": none
  std::string kind;
  int rank = 0;
  int call = 0;
  double seconds = 0;  ///< SFTRUN_STANDIN_NCCL_FAULT_SECONDS: how long the rank is late
  /// SFTRUN_STANDIN_NCCL_FAULT_FILE: is made when the fault happens. From then on the other ranks
  /// wait in their calls for a moment only, and their streams from there on.
  std::string file;
};

struct Settings {
  int devices = 1;                           ///< SFTRUN_STANDIN_DEVICES, less what is not visible
  int major = 9, minor = 0;                  ///< SFTRUN_STANDIN_SM, as in 90
  size_t device_bytes = size_t{8192} << 20;  ///< SFTRUN_STANDIN_MIB
  std::string log;                           ///< SFTRUN_STANDIN_LOG with the rank; empty: no log
  double nccl_seconds = 60;                  ///< SFTRUN_STANDIN_NCCL_SECONDS: waits for other ranks
  int rank = 0;                              ///< RANK
  Fault fault;
  /// SFTRUN_STANDIN_THREADS: each of the program's threads has a device, and that of one is 0.
  bool threads_have_devices = false;
  std::string captures_fail;  ///< SFTRUN_STANDIN_CAPTURES_FAIL: "begun", "ended", ""

  /// Dynamic shared memory of a block, with the opt-in (CUDA C++ programming guide, "technical
  /// specifications per compute capability").
  int shared_bytes_opt_in() const;
  int threads_per_multiprocessor() const;
};

constexpr int kSharedBytes = 48 << 10;  // without the opt-in

const Settings& settings();

}  // namespace stand_in
