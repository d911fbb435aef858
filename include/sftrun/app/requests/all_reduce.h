#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// One rank of `sftrun doctor`.
struct AllReduceRequest {
  std::string device = "auto";
  std::string result;  ///< the file in which rank 0 writes the answer

  SFTRUN_FIELDS(device, result)
};

struct AllReduceAnswer {
  int64_t world_size = 0;
  std::string backend, device;
  int64_t bytes = 0;
  double seconds = 0;          ///< mean of an all-reduce of these bytes
  double bandwidth = 0;        ///< bytes/s on the wire of each rank, as nccl-tests compute it
  double latency_seconds = 0;  ///< of an all-reduce of 4 bytes

  SFTRUN_FIELDS(world_size, backend, device, bytes, seconds, bandwidth, latency_seconds)
};

}  // namespace sftrun::app
