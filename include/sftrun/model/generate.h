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
  double min_p = 0;  ///< of the likeliest token's probability
  /// Of tokens in the prompt or generated before; 1: none. Also when greedy.
  double repetition_penalty = 1;
  uint64_t seed = 0;
  std::vector<int64_t>
      stop_tokens;  ///< generation stops at the first of these, which is not returned
};

struct Generation {
  std::vector<int32_t> tokens;
  /// A stop token was generated, or `on_token` ended it; false: max_new_tokens reached.
  bool stopped = false;
};

/// Logits are NaN or infinite: the base model or the adapter is broken.
class NotFiniteError : public DataError {
  using DataError::DataError;
};

/// Called for each new token: (index of the prompt, token). False ends that sequence with this
/// token.
using OnToken = std::function<bool(size_t, int32_t)>;

/// Generates continuations of several prompts in one batch. A sequence's result does not depend on
/// the others (up to rounding); its random numbers depend only on (seed, stream, position).
/// @param prompts none empty   @param streams random stream of each sequence
/// @throws NotFiniteError
std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options, const OnToken& on_token = {});

}  // namespace sftrun::model
