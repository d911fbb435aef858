#include <ATen/ATen.h>

#include "cuda/launch.h"
#include "gated/gated_launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_gated_forward)> launch_gated_forward("launch_gated_forward");
const CudaEntry<decltype(cuda::launch_gated_backward)> launch_gated_backward(
    "launch_gated_backward");

void require_gated_operands(const at::Tensor& gate, const at::Tensor& up) {
  if (gate.is_contiguous()) return require_same(up, gate);
  require_loose_rows(gate);
  TORCH_CHECK(up.sizes() == gate.sizes() && up.strides() == gate.strides() &&
                  up.device() == gate.device() && up.scalar_type() == gate.scalar_type(),
              "gates of shape ", gate.sizes(), ", strides ", gate.strides(), " and ", up.sizes(),
              ", ", up.strides());
}

cuda::GatedShape gated_shape(const at::Tensor& gate, const at::Tensor& h) {
  if (gate.is_contiguous() && h.is_contiguous()) {
    const int64_t n = gate.numel();
    return {1, n, n, n};
  }
  return {gate.size(0), gate.size(1), gate.stride(0), h.stride(0)};
}

at::Tensor gated_on_cuda(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare) {
  at::Tensor h = spare == 0 ? at::empty(gate.sizes(), gate.options())
                            : empty_rows(gate.size(0), gate.size(1), spare, gate.options());
  const Launch launch(gate);
  launch_gated_forward(cuda_type_of(gate), gating, gate.data_ptr(), up.data_ptr(), h.data_ptr(),
                       gated_shape(gate, h), launch.stream());
  launch.check();
  return h;
}

void gated_backward_on_cuda(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                            cuda::GatedLeaves leaves) {
  const Launch launch(gate);
  launch_gated_backward(cuda_type_of(gate), gating, dh.data_ptr(), gate.data_ptr(), up.data_ptr(),
                        gated_shape(gate, dh), leaves, launch.stream());
  launch.check();
}

}  // namespace

at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare) {
  const ProfileRange range("gated_forward");
  require_gated_operands(gate, up);
  if (spare != 0) require_on_cuda(gate), require_loose_rows(gate);
  if (gate.is_cuda()) return gated_on_cuda(gating, gate, up, spare);
  at::Tensor h = at::empty_like(gate);
  for_dtype(gate, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      kernels.gated_forward(gating, data<T>(gate) + begin, data<T>(up) + begin, data<T>(h) + begin,
                            end - begin);
    });
  });
  return h;
}

void gated_backward_(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up) {
  const ProfileRange range("gated_backward");
  require_gated_operands(gate, up);
  require_operand(dh, gate, gate.scalar_type());
  require_numel(dh, gate.numel());
  if (gate.is_cuda())
    return gated_backward_on_cuda(gating, dh, gate, up, cuda::GatedLeaves::kGradient);
  for_dtype(gate, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      kernels.gated_backward(gating, data<T>(dh) + begin, data<T>(gate) + begin,
                             data<T>(up) + begin, end - begin);
    });
  });
}

void gated_backward_and_forward_(Gating gating, at::Tensor& dh, at::Tensor& gate, at::Tensor& up) {
  const ProfileRange range("gated_backward_and_forward");
  require_on_cuda(gate);
  require_gated_operands(gate, up);
  require_operand(dh, gate, gate.scalar_type());
  require_numel(dh, gate.numel());
  gated_backward_on_cuda(gating, dh, gate, up, cuda::GatedLeaves::kActivation);
}

}  // namespace sftrun::kernels
