#include <ATen/ATen.h>

#include "cross_entropy/cross_entropy_launch.h"
#include "cuda/launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_cross_entropy)> launch_cross_entropy("launch_cross_entropy");

void require_losses_operands(const at::Tensor& logits, const at::Tensor& labels) {
  require_rows(logits);
  require_operand(labels, logits, at::kInt);
  require_numel(labels, logits.size(0));
}

cuda::LossGradient loss_gradient(const GradScale& grad_scale) {
  const auto data_of = [](const at::Tensor& factors) {
    return factors.defined() ? factors.const_data_ptr<float>() : nullptr;
  };
  return {.is_wanted = true,
          .scale = static_cast<float>(grad_scale.value),
          .factor = data_of(grad_scale.factor),
          .row_factors = data_of(grad_scale.row_factors)};
}

at::Tensor losses_on_cuda(const at::Tensor& logits, const at::Tensor& labels, double softcap,
                          const cuda::LossGradient& gradient) {
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const Launch launch(logits);
  launch_cross_entropy(cuda_type_of(logits), logits.data_ptr(), labels.data_ptr<int32_t>(),
                       losses.data_ptr<float>(), logits.size(0), logits.size(1),
                       static_cast<float>(softcap), gradient, launch.stream());
  launch.check();
  return losses;
}

}  // namespace

at::Tensor token_losses_and_grad_(at::Tensor& logits, const at::Tensor& labels, double softcap,
                                  const GradScale& grad_scale) {
  const ProfileRange range("token_losses_and_grad");
  require_losses_operands(logits, labels);
  const at::Tensor& factor = grad_scale.factor;
  if (factor.defined()) {
    require_on_cuda(logits);
    require_operand(factor, logits, at::kFloat);
    require_numel(factor, 1);
  }
  const at::Tensor& row_factors = grad_scale.row_factors;
  if (row_factors.defined()) {
    require_operand(row_factors, logits, at::kFloat);
    require_numel(row_factors, logits.size(0));
  }
  if (logits.is_cuda()) return losses_on_cuda(logits, labels, softcap, loss_gradient(grad_scale));
  const float* factors = row_factors.defined() ? data<float>(row_factors) : nullptr;
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const int64_t vocab = logits.size(1);
  for_dtype(logits, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      kernels.cross_entropy(data<T>(logits) + begin * vocab, data<int32_t>(labels) + begin,
                            data<float>(losses) + begin, end - begin, vocab,
                            static_cast<float>(softcap), static_cast<float>(grad_scale.value),
                            factors ? factors + begin : nullptr);
    });
  });
  return losses;
}

at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap) {
  const ProfileRange range("token_losses");
  require_losses_operands(logits, labels);
  if (logits.is_cuda()) return losses_on_cuda(logits, labels, softcap, {});
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const int64_t vocab = logits.size(1);
  for_dtype(logits, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      kernels.cross_entropy_loss(data<T>(logits) + begin * vocab, data<int32_t>(labels) + begin,
                                 data<float>(losses) + begin, end - begin, vocab,
                                 static_cast<float>(softcap));
    });
  });
  return losses;
}

}  // namespace sftrun::kernels
