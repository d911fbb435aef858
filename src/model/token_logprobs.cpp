#include "sftrun/model/token_logprobs.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace sftrun::model {

std::vector<TokenLogprobs> token_logprobs(const at::Tensor& logits, const at::Tensor& tokens,
                                          size_t num_top) {
  const int64_t n = logits.size(0), num = std::min(static_cast<int64_t>(num_top), logits.size(1));
  const at::Tensor total = at::logsumexp(logits, -1, /*keepdim=*/true);
  const at::Tensor of_token = (logits.gather(-1, tokens.unsqueeze(-1)) - total).cpu();
  const auto [values, indices] = at::topk(logits, num);
  const at::Tensor of_top = (values - total).cpu().contiguous(), top = indices.cpu().contiguous();
  std::vector<TokenLogprobs> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    TokenLogprobs& at_position = all[static_cast<size_t>(i)];
    at_position.logprob = of_token.const_data_ptr<float>()[i];
    for (int64_t k = i * num; k < (i + 1) * num; ++k)
      at_position.top.push_back({static_cast<int32_t>(top.const_data_ptr<int64_t>()[k]),
                                 of_top.const_data_ptr<float>()[k]});
  }
  return all;
}

}  // namespace sftrun::model
