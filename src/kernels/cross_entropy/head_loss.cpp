#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/kernels/functions.h"

namespace sftrun::kernels {
namespace {

// A chunk's logits should stay near the cache but keep products large: 128 rows of a vocabulary of
// 49152 are 24 MB in fp32.
int64_t chunk_rows(const at::Tensor& hidden, int64_t vocab) {
  constexpr int64_t kChunkElements = 8 << 20;
  if (hidden.is_cuda()) return std::max<int64_t>(1024, (256 << 20) / vocab);
  return std::max<int64_t>(64, kChunkElements / vocab);
}

double sum_in_fp64(const at::Tensor& losses) {
  return losses.sum(at::kDouble).item<double>();
}

}  // namespace

HeadLoss head_loss(const at::Tensor& hidden, const Linear& head, const at::Tensor& labels,
                   double grad_scale, bool with_grad) {
  const at::NoGradGuard no_grad;
  const int64_t num_rows = hidden.size(0), step = chunk_rows(hidden, head.weight.size(0));
  HeadLoss result;
  if (with_grad) result.grad_hidden = at::empty_like(hidden);
  for (int64_t first = 0; first < num_rows; first += step) {
    const int64_t rows = std::min(step, num_rows - first);
    const at::Tensor input = hidden.narrow(0, first, rows),
                     chunk_labels = labels.narrow(0, first, rows);
    at::Tensor logits = matmul_nt(input, head.weight);
    if (!with_grad) {
      result.loss_sum += sum_in_fp64(token_losses(logits, chunk_labels));
      continue;
    }
    result.loss_sum += sum_in_fp64(token_losses_and_grad_(logits, chunk_labels, grad_scale));
    result.grad_hidden.narrow(0, first, rows).copy_(matmul_nn(logits, head.weight));
    if (head.weight_parameter) head.weight_parameter->grad.add_(matmul_tn(logits, input));
  }
  return result;
}

}  // namespace sftrun::kernels
