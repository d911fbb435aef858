#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/layers/balance.h"

namespace sftrun::layers {

void count_choices(RouterBalance& balance, const at::Tensor& probabilities,
                   const kernels::Routes& routes) {
  if (!balance.counts) return;
  const at::NoGradGuard no_grad;
  balance.ends = balance.ends.defined() ? balance.ends + routes.ends : routes.ends.to(at::kLong);
  const at::Tensor sums = probabilities.sum(0, /*keepdim=*/false, at::kDouble);
  balance.probability = balance.probability.defined() ? balance.probability + sums : sums;
  balance.rows += probabilities.size(0);
}

namespace {

/// The counts of the tokens of all ranks.
void add_other_ranks(RouterBalance& balance, const SequenceShare& share) {
  const int64_t own = share.end() - share.begin();
  balance.rows = balance.rows / own * share.num_rows();
  balance.ends = balance.ends.clone();
  balance.probability = balance.probability.clone();
  share.ranks().sum(balance.ends);
  share.ranks().sum(balance.probability);
}

}  // namespace

at::Tensor close_balance(RouterBalance& balance, double scale, const SequenceShare* share) {
  balance.counts = false;
  if (balance.rows == 0) return at::zeros({}, at::kDouble);
  if (share != nullptr) add_other_ranks(balance, *share);
  const auto rows = static_cast<double>(balance.rows);
  const auto num_experts = static_cast<double>(balance.ends.numel());
  const at::Tensor chosen =
      at::diff(balance.ends, 1, 0, at::zeros({1}, balance.ends.options())).to(at::kDouble);
  const at::Tensor shares = chosen / rows;
  balance.d_probability = (shares * (scale * num_experts / rows)).to(at::kFloat);
  return num_experts * (shares * balance.probability).sum() / rows;
}

}  // namespace sftrun::layers
