#include "attention/heads_pass.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "linear/fused_norms.h"

namespace sftrun::layers {

const kernels::RopeAngles* HeadsPass::angles() const {
  return a_.rope < 0 ? nullptr : &batch_.ropes[static_cast<size_t>(a_.rope)];
}

bool HeadsPass::is_of_heads(const Norm& norm) const {
  return norm.defined() && norm.weight.numel() == a_.shape.head_dim;
}

std::vector<kernels::HeadsOutput> HeadsPass::forward(const std::vector<RawHeads>& heads) const {
  std::vector<kernels::HeadsInput> inputs;
  std::vector<at::Tensor> rstd_of_rows;
  for (const auto& [x, norm] : heads) {
    if (is_of_heads(*norm)) {
      inputs.push_back({x, norm->weight, norm->eps, norm->offset});
      rstd_of_rows.emplace_back();
      continue;
    }
    const Normed rows = normed_heads(x, *norm);
    inputs.push_back({rows.y, {}});
    rstd_of_rows.push_back(rows.rstd);
  }
  if (angles() == nullptr && std::none_of(inputs.begin(), inputs.end(), [](const auto& input) {
        return input.weight.defined();
      })) {
    std::vector<kernels::HeadsOutput> outputs;
    for (size_t i = 0; i < inputs.size(); ++i) outputs.push_back({inputs[i].x, rstd_of_rows[i]});
    return outputs;
  }
  std::vector<kernels::HeadsOutput> outputs =
      kernels::heads_forward(inputs, angles(), a_.shape.head_dim);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (rstd_of_rows[i].defined()) outputs[i].rstd = rstd_of_rows[i];
  return outputs;
}

std::vector<at::Tensor> HeadsPass::forward_again(const std::vector<RawHeads>& kept) const {
  std::vector<RawHeads> normed;
  for (const RawHeads& heads : kept)
    if (heads.norm->defined()) normed.push_back(heads);
  std::vector<kernels::HeadsOutput> read;
  if (!normed.empty()) read = forward(normed);
  std::vector<at::Tensor> result;
  auto next = read.begin();
  for (const RawHeads& heads : kept) result.push_back(heads.norm->defined() ? next++->y : heads.x);
  return result;
}

std::vector<at::Tensor> HeadsPass::backward(const std::vector<RawHeads>& kept,
                                            const std::vector<at::Tensor>& grads,
                                            const std::vector<at::Tensor>& rstd) const {
  std::vector<kernels::HeadsInput> inputs;
  // A norm with a trained weight needs the gradient between norm and RoPE.
  const auto is_at_once = [&](const Norm& norm) {
    return is_of_heads(norm) && norm.parameter == nullptr;
  };
  bool does_something = angles() != nullptr;
  for (const auto& [x, norm] : kept) {
    inputs.push_back({x, is_at_once(*norm) ? norm->weight : at::Tensor(), norm->eps, norm->offset});
    does_something = does_something || is_at_once(*norm);
  }
  std::vector<at::Tensor> result =
      does_something ? kernels::heads_backward(inputs, grads, rstd, angles(), a_.shape.head_dim)
                     : grads;
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto& [x, norm] = kept[i];
    if (!norm->defined() || is_at_once(*norm)) continue;
    result[i] = norm_backward(rows_of(result[i], *norm), rows_of(x, *norm), *norm, rstd[i], {},
                              /*needs_dx=*/true)
                    .view_as(x);
  }
  return result;
}

void HeadsPass::backward_into(const std::vector<RawHeads>& kept, const at::Tensor& value,
                              const kernels::AttentionGrads& grads,
                              const std::vector<at::Tensor>& rstd,
                              const std::vector<at::Tensor>& into) const {
  std::vector<kernels::HeadsInput> inputs;
  for (const auto& [x, norm] : kept) inputs.push_back({x, norm->weight, norm->eps, norm->offset});
  kernels::HeadsInput& unrotated = inputs.emplace_back();
  unrotated.x = value, unrotated.rotates = false;
  kernels::heads_backward(inputs, {grads.dq, grads.dk, grads.dv}, rstd, angles(), a_.shape.head_dim,
                          into);
}

}  // namespace sftrun::layers
