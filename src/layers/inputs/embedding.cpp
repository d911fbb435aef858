#include "sftrun/layers/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/dora.h"

namespace sftrun::layers {
namespace {

/// Tokens as rows of this rank's part of the table.
struct OwnRows {
  at::Tensor rows;     ///< [T] int64; any row for tokens of other ranks
  at::Tensor is_here;  ///< [T, 1] bool; undefined: all tokens
  /// Zeros for the tokens of other ranks.   @param values [T, n]
  at::Tensor only_here(at::Tensor values) const {
    return is_here.defined() ? values.masked_fill_(~is_here, 0) : values;
  }
};

OwnRows own_rows(const Embedding& embedding, const at::Tensor& tokens) {
  if (embedding.ranks == nullptr) return {tokens, {}};
  const at::Tensor rows = tokens - embedding.first_token;
  const int64_t count = embedding.matrix().size(0);
  return {rows.clamp(0, count - 1), rows.ge(0).logical_and_(rows.lt(count)).unsqueeze(1)};
}

/// Rows of the table alone, scaled.
at::Tensor rows_of(const Embedding& embedding, const OwnRows& tokens, at::ScalarType dtype) {
  const at::Tensor rows = tokens.only_here(
      embedding.quantized ? kernels::dequantize_rows(*embedding.quantized, tokens.rows, dtype)
                          : embedding.weight.index_select(0, tokens.rows));
  return embedding.scale == 1 ? rows : rows.mul_(embedding.scale);
}

/// What all ranks have of some rows.
at::Tensor summed(at::Tensor rows, const Embedding& embedding) {
  if (embedding.ranks) embedding.ranks->sum(rows);
  return rows;
}

/// embedding.scale * lora.scale * A[:, token]^T: [T, r].
at::Tensor low_of(const Embedding& embedding, const OwnRows& tokens) {
  const LoraAdapter& lora = *embedding.lora;
  const at::Tensor columns = lora.a->compute.detach().t().index_select(0, tokens.rows);
  return tokens.only_here(columns.contiguous().mul_(embedding.scale * lora.scale));
}

/// Table rows plus the adapter's part, before DoRA.
at::Tensor sum_of(const Embedding& embedding, const OwnRows& tokens, const at::Tensor& low,
                  at::ScalarType dtype) {
  return summed(
      kernels::matmul_sum({{low, embedding.lora->b->compute.detach(), /*transposed=*/true}},
                          rows_of(embedding, tokens, dtype)),
      embedding);
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
  const OwnRows own = own_rows(embedding, tokens);
  if (!embedding.lora || !adapters) return summed(rows_of(embedding, own, dtype), embedding);
  const LoraAdapter& lora = *embedding.lora;
  at::Tensor y = sum_of(embedding, own, low_of(embedding, own), dtype);
  return lora.magnitude ? rows_times_gains(y, gains_of(lora, column_lengths(embedding))) : y;
}

void embedding_backward(const Embedding& embedding, const at::Tensor& tokens,
                        const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  const OwnRows own = own_rows(embedding, tokens);
  if (embedding.parameter) {
    const at::Tensor of_rows =
        grad.to(at::kFloat, /*non_blocking=*/false, /*copy=*/own.is_here.defined());
    embedding.parameter->grad.index_add_(0, own.rows, own.only_here(of_rows), embedding.scale);
  }
  if (!embedding.lora) return;
  const LoraAdapter& lora = *embedding.lora;
  const at::Tensor low = low_of(embedding, own);
  at::Tensor inner = grad.contiguous();
  if (lora.magnitude) {
    inner = through_magnitude(inner, sum_of(embedding, own, low, grad.scalar_type()), embedding);
  }
  kernels::add_matmul_tn_(lora.b->grad, inner, low);
  const at::Tensor d_columns =
      own.only_here(kernels::matmul_sum({{inner, lora.b->compute.detach(), false}}));
  lora.a->grad.index_add_(1, own.rows, d_columns.t().to(at::kFloat), embedding.scale * lora.scale);
}

}  // namespace sftrun::layers
