#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sftrun::model {

/// Log-probabilities at one position, as the model predicts them: before temperature, penalties and
/// cuts.
struct TokenLogprobs {
  struct Candidate {
    int32_t token = 0;
    float logprob = 0;
  };
  float logprob = 0;           ///< of the token at this position
  float drawn = 0;             ///< of a generated token: DrawnLogprob::drawn
  float entropy = 0;           ///< of a generated token, where asked for: DrawnLogprob::entropy
  std::vector<Candidate> top;  ///< the likeliest tokens, likeliest first
};

/// @param logits fp32 [n, vocab]   @param tokens [n] int64, of these positions, on the same device
/// @param num_top likeliest tokens to list, at most `vocab`
std::vector<TokenLogprobs> token_logprobs(const at::Tensor& logits, const at::Tensor& tokens,
                                          size_t num_top);

}  // namespace sftrun::model
