#pragma once

#include <cstdint>

#include "rank.h"
#include "sftrun/model/decoder.h"

namespace sftrun::engine {

/// Bytes that a rank takes in host memory for `parallel.offload.params`, beside the masters that it
/// has read: weights, gradients and optimizer state of its part.
/// @param shards ranks that divide the model   @param keeps_start as of config::keeps_start
uint64_t trained_host_bytes(model::Decoder& decoder, const config::TrainConfig& settings,
                            int shards, bool keeps_start = false);

/// What the ranks of one machine will take, and what is free there.
struct HostMemory {
  uint64_t needed_bytes = 0;
  uint64_t free_bytes = 0;  ///< 0: the machine does not say
};
/// @throws OutOfMemoryError with both sizes if more is needed than is free
void require_host_memory(const HostMemory& memory);

/// The same for the machine of this rank, whose ranks take the same. A collective.
/// @param own_bytes that this rank will take
void require_host_memory(Rank& rank, uint64_t own_bytes);

}  // namespace sftrun::engine
