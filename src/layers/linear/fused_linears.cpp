#include "linear/fused_linears.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/layers/dora.h"

namespace sftrun::layers {
namespace {

bool has_dropout(const LoraAdapter& lora, const BatchContext& batch) {
  return batch.training && lora.dropout > 0;
}

at::Tensor with_dropout(const at::Tensor& x, const LoraAdapter& lora, const BatchContext& batch) {
  if (!lora.inputs) return kernels::dropout(x, batch, lora.dropout, lora.module_number);
  const at::Tensor all = at::zeros({x.size(0), lora.inputs->whole_size}, x.options());
  put_part(all, *lora.inputs, x);
  return part_of(kernels::dropout(all, batch, lora.dropout, lora.module_number), *lora.inputs)
      .contiguous();
}

/// CPU: the adapter's scale multiplies the columns x A^T. CUDA: it is passed to the products that
/// read them, which saves a launch.
double scale_of_columns(const at::Tensor& x, const LoraAdapter& lora) {
  return x.is_cuda() ? 1 : lora.scale;
}
double scale_of_products(const at::Tensor& x, const LoraAdapter& lora) {
  return x.is_cuda() ? lora.scale : 1;
}
at::Tensor scaled_columns(at::Tensor columns, const LoraAdapter& lora) {
  const double scale = scale_of_columns(columns, lora);
  return scale == 1 ? columns : columns.mul_(scale);
}

/// x A^T of each adapter; adapters without dropout share one product.
LowRank low_rank_of(const at::Tensor& x, const LinearGroup& group, const BatchContext& batch) {
  LowRank low(group.size());
  std::vector<at::Tensor> shared;
  for (size_t i = 0; i < group.size(); ++i) {
    if (active_adapter(*group[i], batch) == nullptr) continue;
    const LoraAdapter& lora = *group[i]->lora;
    if (has_dropout(lora, batch)) {
      low[i].low = scaled_columns(
          kernels::matmul_sum({{with_dropout(x, lora, batch), lora.a->compute, true}}), lora);
    } else {
      shared.push_back(lora.a->compute);
    }
  }
  if (shared.empty()) return low;
  const at::Tensor all = kernels::matmul_sum(
      {{x, shared.size() == 1 ? shared[0] : at::cat(shared), /*transposed=*/true}});
  int64_t first = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (active_adapter(*group[i], batch) == nullptr || low[i].low.defined()) continue;
    const LoraAdapter& lora = *group[i]->lora;
    low[i].low = scaled_columns(all.narrow(1, first, lora.a->shape[0]), lora);
    first += lora.a->shape[0];
  }
  return low;
}

/// Queues the gradients of A and B in `grads`, to be computed for the group in one launch; returns
/// dy B [T, r], on CPU times the scale.
at::Tensor lora_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& low,
                         const LoraAdapter& lora, const BatchContext& batch,
                         std::vector<kernels::AdapterGrad>& grads) {
  at::Tensor d_low = scaled_columns(kernels::matmul_sum({{dy, lora.b->compute, false}}), lora);
  const double scale = scale_of_products(dy, lora);
  grads.push_back({lora.b->grad, dy, low, scale});
  grads.push_back(
      {lora.a->grad, d_low, has_dropout(lora, batch) ? with_dropout(x, lora, batch) : x, scale});
  // Computed at once: x after dropout need not be kept, and CPU gains nothing from a joint launch.
  if (has_dropout(lora, batch) || dy.is_cpu()) {
    kernels::add_adapter_grads_(grads);
    grads.clear();
  }
  return d_low;
}

/// Product with lora_rank columns as a term of a sum.
kernels::Product thin_term(const at::Tensor& columns, const Parameter& matrix, bool transposed,
                           const LoraAdapter& lora) {
  kernels::Product term{columns, matrix.compute, transposed};
  term.scale = scale_of_products(columns, lora);
  return term;
}

/// x rounded to e4m3, if more than one linear of the group is in FP8.
kernels::RoundedRows shared_rounding(const at::Tensor& x, const LinearGroup& group) {
  const auto in_fp8 = std::count_if(group.begin(), group.end(), [](const Linear* linear) {
    return linear->quantized && linear->quantized->info().rounds_activations;
  });
  return in_fp8 > 1 ? kernels::round_to_e4m3(x) : kernels::RoundedRows();
}

/// y + bias + residual in place, each if defined.
at::Tensor with_summands(at::Tensor y, const at::Tensor& bias, const at::Tensor& residual) {
  if (bias.defined()) y.add_(bias);
  if (residual.defined()) y.add_(residual);
  return y;
}

/// The product of all ranks.
at::Tensor summed(at::Tensor y, const Linear& linear) {
  if (linear.sums_outputs()) linear.ranks->sum(y);
  return y;
}

/// residual + bias + x W^T, with the adapter's part.
at::Tensor forward(const at::Tensor& x, const Linear& linear, const LoraRun& run,
                   const at::Tensor& residual, const kernels::RoundedRows& rounded) {
  std::vector<kernels::Product> terms = {{x, linear.matrix(), /*transposed=*/true, rounded}};
  if (run.low.defined())
    terms.push_back(thin_term(run.low, *linear.lora->b, /*transposed=*/true, *linear.lora));
  if (linear.sums_outputs())
    return with_summands(summed(kernels::matmul_sum(terms), linear), linear.bias, residual);
  return kernels::matmul_sum(terms, residual, linear.bias);
}

/// result * gains [out_features], rounded once.
at::Tensor times_gains(const at::Tensor& result, const at::Tensor& gains) {
  return (result * gains).to(result.scalar_type());
}

/// The same with DoRA.
at::Tensor dora_forward(const at::Tensor& x, const Linear& linear, const BatchContext& batch,
                        LoraRun& run, const at::Tensor& residual) {
  const LoraAdapter& lora = *linear.lora;
  const kernels::Matrix w = linear.matrix();
  const bool through_dropout = has_dropout(lora, batch);
  const at::Tensor dropped_x = through_dropout ? with_dropout(x, lora, batch) : x;
  run.lengths = row_lengths(linear);
  run.result = summed(
      kernels::matmul_sum({{dropped_x, w, true}, thin_term(run.low, *lora.b, true, lora)}), linear);
  at::Tensor y = times_gains(run.result, gains_of(lora, run.lengths));
  if (through_dropout)
    y = linear.sums_outputs()
            ? y.add_(summed(kernels::matmul_sum({{x - dropped_x, w, true}}), linear))
            : kernels::matmul_sum({{x - dropped_x, w, true}}, y);
  return with_summands(y, linear.bias, residual);
}

/// Adds the gradient of the DoRA magnitude; returns the gradient of its input.
at::Tensor through_magnitude(const at::Tensor& dy, const LoraAdapter& lora, const LoraRun& run) {
  lora.magnitude->grad.add_(kernels::product_sums(dy, run.result).div_(run.lengths));
  return times_gains(dy, gains_of(lora, run.lengths));
}

}  // namespace

std::vector<at::Tensor> linears_forward(const at::Tensor& x, const LinearGroup& group,
                                        const BatchContext& batch, LowRank* low,
                                        const at::Tensor& residual) {
  LowRank runs = low_rank_of(x, group, batch);
  const kernels::RoundedRows rounded = shared_rounding(x, group);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < group.size(); ++i) {
    const LoraAdapter* lora = active_adapter(*group[i], batch);
    const bool is_dora = lora != nullptr && lora->magnitude != nullptr;
    outputs.push_back(is_dora ? dora_forward(x, *group[i], batch, runs[i], residual)
                              : forward(x, *group[i], runs[i], residual, rounded));
  }
  if (low != nullptr) *low = std::move(runs);
  return outputs;
}

at::Tensor linears_backward(const std::vector<at::Tensor>& grads, const at::Tensor& x,
                            const LowRank& low, const LinearGroup& group, const BatchContext& batch,
                            bool needs_dx) {
  std::vector<kernels::Product> terms;  // of dx
  std::vector<at::Tensor> through_dropout;
  std::vector<kernels::AdapterGrad> adapter_grads;
  for (size_t i = 0; i < group.size(); ++i) {
    const Linear& linear = *group[i];
    const at::Tensor& dy = grads[i];
    if (linear.weight_parameter) kernels::add_matmul_tn_(linear.weight_parameter->grad, dy, x);
    if (linear.bias_parameter) linear.bias_parameter->grad.add_(dy.sum(0, false, at::kFloat));
    if (!linear.lora) {
      terms.push_back({dy, linear.matrix(), /*transposed=*/false});
      continue;
    }
    const LoraAdapter& lora = *linear.lora;
    const at::Tensor inner = lora.magnitude ? through_magnitude(dy, lora, low[i]) : dy;
    const at::Tensor d_low = lora_backward(inner, x, low[i].low, lora, batch, adapter_grads);
    const bool drops_here = has_dropout(lora, batch);
    terms.push_back({drops_here ? dy : inner, linear.matrix(), /*transposed=*/false});
    if (!needs_dx) continue;
    if (drops_here) {
      std::vector<kernels::Product> dropped_terms = {thin_term(d_low, *lora.a, false, lora)};
      // W dropout(x) is multiplied by the magnitude, W (x - dropout(x)) is not.
      if (lora.magnitude) dropped_terms.push_back({inner - dy, linear.matrix(), false});
      through_dropout.push_back(with_dropout(kernels::matmul_sum(dropped_terms), lora, batch));
    } else {
      terms.push_back(thin_term(d_low, *lora.a, /*transposed=*/false, lora));
    }
  }
  kernels::add_adapter_grads_(adapter_grads);
  if (!needs_dx) return {};
  at::Tensor dx = kernels::matmul_sum(terms);
  for (const at::Tensor& part : through_dropout) dx.add_(part);
  if (group.front()->sums_input_gradient()) group.front()->ranks->sum(dx);
  return dx;
}

}  // namespace sftrun::layers
