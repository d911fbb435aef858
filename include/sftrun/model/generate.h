#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/data/media.h"
#include "sftrun/layers/copy_ranks.h"
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
      stop_tokens;  ///< generation stops at the first of these, which is not among the tokens
  bool keeps_logprobs = false;  ///< Generation has `logprobs`
};

/// Natural logarithms of the probability of a generated token.
struct DrawnLogprob {
  float model = 0;  ///< as the model predicts it: at temperature 1, without penalties and cuts
  /// Of the distribution that it was drawn from: after repetition_penalty, temperature, top_k, top_p
  /// and min_p. 0 where it was chosen (temperature 0).
  float drawn = 0;
  float entropy = 0;  ///< of the model's prediction, in nats
};

struct Generation {
  std::vector<int32_t> tokens;
  std::optional<int32_t> stop_token;  ///< that ended it; nullopt: none did
  /// If the options say so: of `tokens`, then of the stop token.
  std::vector<DrawnLogprob> logprobs;
  /// A stop token was generated, or `on_token` ended it; false: max_new_tokens reached.
  bool stopped = false;
  std::vector<float> scores;  ///< [labels], of a model with a head of scores; it has no tokens
};

/// Logits are NaN or infinite: the base model or the adapter is broken.
class NotFiniteError : public DataError {
  using DataError::DataError;
};

/// Called for each new token: (index of the prompt, token). False ends that sequence with this
/// token.
using OnToken = std::function<bool(size_t, int32_t)>;

struct Prompt {
  size_t index = 0;                             ///< names it in the hooks
  std::vector<int32_t> tokens;                  ///< not empty
  uint64_t stream = 0;                          ///< of its random numbers
  std::vector<data::SequenceMedia> media = {};  ///< in order
  uint32_t draw =
      0;  ///< number of the answer among several to one prompt: others have other random numbers
  std::optional<int64_t> max_new_tokens = {};  ///< in place of the options' own
};

/// Where prompts come from, and where answers go.
struct GenerationHooks {
  /// Called when a row of the batch is free. nullopt: no prompt is left, or none is wanted any more.
  std::function<std::optional<Prompt>()> next_prompt;
  std::function<void(size_t, Generation&&)> on_finished;  ///< (index of the prompt, its answer)
  OnToken on_token = {};                                  ///< may be empty
  /// Called before each step with the number of active rows; false: stop, and drop what is not
  /// finished. May be empty. On a rank that follows another one the result is ignored.
  std::function<bool(size_t)> before_step = {};
};

/// Generates the continuations of all prompts, up to `batch_size` at the same time. A finished
/// sequence is replaced at once by the next prompt. A sequence's answer does not depend on the others
/// (up to rounding); its random numbers depend only on (seed, stream, draw, position).
/// @param ranks that have the decoder's model together, all of which call it; hooks other than
/// `before_step` are called on their lead only. null: this rank alone has all of it
/// @throws NotFiniteError
void generate(Decoder& decoder, const SamplingOptions& options, size_t batch_size,
              const GenerationHooks& hooks, layers::CopyRanks* ranks = nullptr);

/// The same for prompts that are all in one batch.
/// @param prompts none empty   @param streams random stream of each sequence
std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options, const OnToken& on_token = {});

}  // namespace sftrun::model
