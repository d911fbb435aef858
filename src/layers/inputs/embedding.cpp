#include "sftrun/layers/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/dora.h"

namespace sftrun::layers {
namespace {

/// Rows of the table alone, scaled.
at::Tensor rows_of(const Embedding& embedding, const at::Tensor& tokens, at::ScalarType dtype) {
  at::Tensor rows = embedding.quantized
                        ? kernels::dequantize_rows(*embedding.quantized, tokens, dtype)
                        : embedding.weight.index_select(0, tokens);
  return embedding.scale == 1 ? rows : rows.mul_(embedding.scale);
}

/// embedding.scale * lora.scale * A[:, token]^T: [T, r].
at::Tensor low_of(const Embedding& embedding, const at::Tensor& tokens) {
  const LoraAdapter& lora = *embedding.lora;
  const at::Tensor columns = lora.a->compute.detach().t().index_select(0, tokens);
  return columns.contiguous().mul_(embedding.scale * lora.scale);
}

/// Table rows plus the adapter's part, before DoRA.
at::Tensor sum_of(const Embedding& embedding, const at::Tensor& tokens, const at::Tensor& low,
                  at::ScalarType dtype) {
  return kernels::matmul_sum({{low, embedding.lora->b->compute.detach(), /*transposed=*/true}},
                             rows_of(embedding, tokens, dtype));
}

/// rows * gains [hidden], rounded once.
at::Tensor rows_times_gains(const at::Tensor& rows, const at::Tensor& gains) {
  return (rows * gains).to(rows.scalar_type());
}

/// Adds the gradient of the DoRA magnitude; returns the gradient of its input.
at::Tensor through_magnitude(const at::Tensor& grad, const at::Tensor& sum,
                             const Embedding& embedding) {
  const LoraAdapter& lora = *embedding.lora;
  const at::Tensor lengths = column_lengths(embedding);
  lora.magnitude->grad.add_((grad.to(at::kFloat) * sum).sum(0).div_(lengths));
  return rows_times_gains(grad, gains_of(lora, lengths));
}

}  // namespace

at::Tensor embedding_forward(const Embedding& embedding, const at::Tensor& tokens,
                             at::ScalarType dtype, bool adapters) {
  const at::NoGradGuard no_grad;
  if (!embedding.lora || !adapters) return rows_of(embedding, tokens, dtype);
  const LoraAdapter& lora = *embedding.lora;
  at::Tensor y = sum_of(embedding, tokens, low_of(embedding, tokens), dtype);
  return lora.magnitude ? rows_times_gains(y, gains_of(lora, column_lengths(embedding))) : y;
}

void embedding_backward(const Embedding& embedding, const at::Tensor& tokens,
                        const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  if (embedding.parameter)
    embedding.parameter->grad.index_add_(0, tokens, grad.to(at::kFloat), embedding.scale);
  if (!embedding.lora) return;
  const LoraAdapter& lora = *embedding.lora;
  const at::Tensor low = low_of(embedding, tokens);
  at::Tensor inner = grad.contiguous();
  if (lora.magnitude) {
    inner = through_magnitude(inner, sum_of(embedding, tokens, low, grad.scalar_type()), embedding);
  }
  kernels::add_matmul_tn_(lora.b->grad, inner, low);
  const at::Tensor d_columns = kernels::matmul_sum({{inner, lora.b->compute.detach(), false}});
  lora.a->grad.index_add_(1, tokens, d_columns.t().to(at::kFloat), embedding.scale * lora.scale);
}

}  // namespace sftrun::layers
