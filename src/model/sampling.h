#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/model/generate.h"

namespace sftrun::model {

/// Makes tokens of the prompt and tokens already generated less likely, each once however often it
/// occurs: positive logits are divided by `penalty`, negative ones multiplied (CTRL,
/// arXiv:1909.05858, section 4.1; transformers' RepetitionPenaltyLogitsProcessor). A penalty below
/// 1 makes them more likely.
/// @param logits [vocab]; tokens beyond them are passed over
void penalize_repetition(std::span<float> logits, std::span<const int32_t> prompt,
                         std::span<const int32_t> generated, double penalty);

/// The tokens to draw from. Probabilities are weights / total.
struct Candidates {
  std::vector<int32_t> tokens;
  std::vector<double> weights;
  double total = 0;
};
/// softmax(logits / temperature) cut to top_k, then to the smallest set whose probability reaches
/// top_p, then to tokens of at least min_p times the largest probability: transformers' order of
/// TemperatureLogitsWarper, TopK, TopP and MinPLogitsWarper.
/// @param logits fp32 [vocab]   @param options temperature above 0
Candidates candidates(std::span<const float> logits, const SamplingOptions& options);

/// Names the random number of one token of one answer.
struct DrawPlace {
  uint64_t stream = 0;  ///< below 2^32
  uint32_t draw = 0;
  uint64_t position = 0;  ///< in the answer, below 2^32
};

struct DrawnToken {
  int32_t token = 0;
  double logprob = 0;  ///< natural logarithm of its share of `candidates`; 0 when temperature is 0
};

/// Chooses the next token from fp32 logits [vocab]: the largest (the first of equals) when
/// temperature is 0, else a draw from `candidates`. The random number is a function of the seed and
/// the place alone.
DrawnToken sample_token(std::span<const float> logits, const SamplingOptions& options,
                        const DrawPlace& place);

}  // namespace sftrun::model
