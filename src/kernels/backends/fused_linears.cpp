#include "fused_linears.h"

#include <ATen/ATen.h>

namespace sftrun::kernels {
namespace {

bool drops(const LoraAdapter& lora, const BatchContext& batch) {
  return batch.training && lora.dropout > 0;
}

at::Tensor dropped(const at::Tensor& x, const LoraAdapter& lora, const BatchContext& batch) {
  return dropout(x, batch, lora.dropout, lora.module_number);
}

/// Adapters without dropout read the same x: one product for all of them.
LowRank low_rank_of(const at::Tensor& x, const LinearGroup& group, const BatchContext& batch) {
  LowRank low(group.size());
  std::vector<at::Tensor> shared;
  for (size_t i = 0; i < group.size(); ++i) {
    if (!group[i]->lora) continue;
    const LoraAdapter& lora = *group[i]->lora;
    if (drops(lora, batch)) {
      low[i] = matmul_sum({{dropped(x, lora, batch), lora.a->compute, true}}).mul_(lora.scale);
    } else {
      shared.push_back(lora.a->compute);
    }
  }
  if (shared.empty()) return low;
  const at::Tensor all =
      matmul_sum({{x, shared.size() == 1 ? shared[0] : at::cat(shared), /*transposed=*/true}});
  int64_t first = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (!group[i]->lora || low[i].defined()) continue;
    const LoraAdapter& lora = *group[i]->lora;
    low[i] = all.narrow(1, first, lora.a->shape[0]).mul_(lora.scale);
    first += lora.a->shape[0];
  }
  return low;
}

/// Gradients of A and B; returns scale * dy B [T, r].
at::Tensor lora_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& low,
                         const LoraAdapter& lora, const BatchContext& batch) {
  at::Tensor d_low = matmul_sum({{dy, lora.b->compute, false}}).mul_(lora.scale);
  add_matmul_tn_(lora.b->grad, dy, low);
  add_matmul_tn_(lora.a->grad, d_low, drops(lora, batch) ? dropped(x, lora, batch) : x);
  return d_low;
}

}  // namespace

std::vector<at::Tensor> linears_forward(const at::Tensor& x, const LinearGroup& group,
                                        const BatchContext& batch, LowRank* low,
                                        const at::Tensor& residual) {
  const LowRank products = low_rank_of(x, group, batch);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < group.size(); ++i) {
    std::vector<Product> terms = {{x, group[i]->matrix(), /*transposed=*/true}};
    if (products[i].defined())
      terms.push_back({products[i], group[i]->lora->b->compute, /*transposed=*/true});
    outputs.push_back(matmul_sum(terms, residual, group[i]->bias));
  }
  if (low != nullptr) *low = products;
  return outputs;
}

at::Tensor linears_backward(const std::vector<at::Tensor>& grads, const at::Tensor& x,
                            const LowRank& low, const LinearGroup& group, const BatchContext& batch,
                            bool needs_dx) {
  std::vector<Product> terms;  // of dx
  std::vector<at::Tensor> through_dropout;
  for (size_t i = 0; i < group.size(); ++i) {
    const Linear& linear = *group[i];
    const at::Tensor& dy = grads[i];
    terms.push_back({dy, linear.matrix(), /*transposed=*/false});
    if (linear.weight_parameter) add_matmul_tn_(linear.weight_parameter->grad, dy, x);
    if (linear.bias_parameter) linear.bias_parameter->grad.add_(dy.sum(0, false, at::kFloat));
    if (!linear.lora) continue;
    const at::Tensor d_low = lora_backward(dy, x, low[i], *linear.lora, batch);
    if (!needs_dx) continue;
    if (drops(*linear.lora, batch)) {
      through_dropout.push_back(
          dropped(matmul_sum({{d_low, linear.lora->a->compute, false}}), *linear.lora, batch));
    } else {
      terms.push_back({d_low, linear.lora->a->compute, /*transposed=*/false});
    }
  }
  if (!needs_dx) return {};
  at::Tensor dx = matmul_sum(terms);
  for (const at::Tensor& part : through_dropout) dx.add_(part);
  return dx;
}

}  // namespace sftrun::kernels
