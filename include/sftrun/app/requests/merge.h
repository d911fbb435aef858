#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Merges an adapter, or converts a model or a checkpoint.
struct MergeRequest {
  std::string model, output;
  std::optional<std::string> adapter, checkpoint;
  std::string format = "safetensors";  ///< or gguf
  std::string dtype = "auto";          ///< of the stored weights; also one of weights::gguf_mixes()
  int64_t max_shard_size = 0;          ///< bytes
  bool as_stored = false, overwrite = false, json = false;
  QuantRequest quant;
  /// Sequences to measure on what merging changes; null: a few where the base was quantised, 0: none
  std::optional<int64_t> sample;
  std::optional<std::string> data;  ///< to measure it on; null: the run's
  std::string device = "auto";      ///< to measure it on

  SFTRUN_FIELDS(model, output, adapter, checkpoint, format, dtype, max_shard_size, as_stored,
                overwrite, json, quant, sample, data, device)
};

}  // namespace sftrun::app
