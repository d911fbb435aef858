#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

/// How much memory a training step needs, from the architecture alone.
namespace sftrun::plan {

/// Bytes that a token's activations hold at the peak of the backward pass with fused operations:
/// what each block saves (its inputs, normed inputs, q, k, v, attention, gate, up and their
/// product), or with checkpointing only the blocks' inputs and one block; and one block's
/// temporaries. @param element_bytes 2 or 4
int64_t activation_bytes_per_token(const spec::ArchSpec& arch, int64_t element_bytes,
                                   bool gradient_checkpointing);

/// Bytes of the matrices that the checkpoint holds in fewer bits than 16, by their names.
using StoredBytes = std::map<std::string, uint64_t>;

/// Whether a run that trains an adapter holds its base as the files have it.
/// @param holds_packed whether they have matrices in fewer bits than 16
bool keeps_stored(const config::TuningConfig& tuning, bool holds_packed);

/// Bytes of the frozen base of a run that trains an adapter: each tensor in what `tuning.quant`
/// makes of it.
int64_t base_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   int64_t element_bytes, const StoredBytes& stored = {});

/// Bytes of weights, gradients, optimizer state and compute copies on one device, without
/// activations.   @param on_gpu moments of paged optimizers are in host memory then
int64_t static_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                     int64_t element_bytes, const StoredBytes& stored = {}, bool on_gpu = false);

/// The largest micro-batch, in bins of max_seq_len tokens (or examples that long), that fits a
/// device with `memory_bytes`; at least 1 and at most config::kMaxAutoMicroBatch. A fifth of the
/// memory is left to everything that is not counted.
int64_t max_micro_batch(const spec::ArchSpec& arch, const config::RunConfig& config,
                        uint64_t memory_bytes, int64_t element_bytes,
                        const StoredBytes& stored = {}, bool on_gpu = false);

}  // namespace sftrun::plan
