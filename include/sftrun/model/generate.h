#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/model/decoder.h"

/// Autoregressive generation with a key/value cache.
namespace sftrun::model {

struct SamplingOptions {
  int64_t max_new_tokens = 256;
  double temperature = 0;  ///< 0: greedy
  double top_p = 1;
  std::optional<int64_t> top_k;
  uint64_t seed = 0;
  std::vector<int64_t>
      stop_tokens;  ///< generation ends with, and does not return, the first of these
};

struct Generation {
  std::vector<int32_t> tokens;
  bool stopped = false;  ///< a stop token came; false: max_new_tokens
};

/// Logits that are no finite numbers: of a base or an adapter that is broken.
class NotFiniteError : public DataError {
  using DataError::DataError;
};

/// Continues several prompts side by side. Each sequence's result does not depend on the others (up
/// to rounding), and its random numbers are a function of (seed, stream, position).
/// @param prompts none empty   @param streams number of each sequence, for its random numbers
/// @param on_token called as tokens come: (index of the prompt, token)
/// @throws NotFiniteError
std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options,
                                 const std::function<void(size_t, int32_t)>& on_token = {});

}  // namespace sftrun::model
