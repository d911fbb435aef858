#include "sftrun/layers/dora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/kernels/ops.h"

namespace sftrun::layers {
namespace {

at::Tensor squares(const kernels::Matrix& matrix) {
  return matrix.values(at::kFloat).to(at::kFloat).square();
}

/// @param by_rows norms of rows: A is [r, columns of W]; else of columns: A is [r, rows of W]
/// @param ranks whose squares are summed, as each has a part of what is normed; or null
at::Tensor lengths_of(const LoraAdapter& lora, const kernels::Matrix& w, bool by_rows,
                      const TensorRanks* ranks) {
  if (lora.lengths.defined()) return lora.lengths;
  const at::NoGradGuard no_grad;
  const at::Tensor a = lora.a->master.detach(), b = lora.b->master.detach() * lora.scale;
  // An FP8 product would round its left operand, too; here only W is in FP8.
  const bool is_fp8 = w.quantized != nullptr && w.quantized->info().rounds_activations;
  const at::Tensor compute = lora.a->compute.detach();
  const kernels::Matrix exact = is_fp8 ? kernels::Matrix(w.values(compute.scalar_type())) : w;
  const at::Tensor a_w = kernels::matmul_sum({{compute, exact, by_rows}});  // [r, out]
  const at::Tensor crossed = (a_w.t().to(at::kFloat) * b).sum(1);
  const at::Tensor own = (at::mm(b, at::mm(a, a.t())) * b).sum(1);
  const at::Tensor squares = lora.squares + 2 * crossed + own;
  if (ranks != nullptr) ranks->sum(squares);
  return squares.clamp_min(0).sqrt_();
}

}  // namespace

at::Tensor row_squares(const Linear& linear) {
  const at::NoGradGuard no_grad;
  return squares(linear.matrix()).sum(1);
}

at::Tensor column_squares(const Embedding& embedding) {
  const at::NoGradGuard no_grad;
  return squares(embedding.matrix()).sum(0);
}

at::Tensor row_lengths(const Linear& linear) {
  return lengths_of(*linear.lora, linear.matrix(), /*by_rows=*/true,
                    linear.sums_outputs() ? linear.ranks : nullptr);
}

at::Tensor column_lengths(const Embedding& embedding) {
  return lengths_of(*embedding.lora, embedding.matrix(), /*by_rows=*/false, embedding.ranks);
}

at::Tensor gains_of(const LoraAdapter& lora, const at::Tensor& lengths) {
  return lora.magnitude->master.detach() / lengths;
}

}  // namespace sftrun::layers
