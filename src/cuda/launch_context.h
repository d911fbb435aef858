#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/launch.h"

/// What all entries use: the type, the stream and the results of a launch.
namespace sftrun::kernels::plugin {

inline cuda::Type type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return cuda::Type::kFloat32;
    case at::kBFloat16:
      return cuda::Type::kBFloat16;
    case at::kHalf:
      return cuda::Type::kFloat16;
    default:
      TORCH_CHECK(false, "the CUDA kernels have no ", x.scalar_type());
  }
}

/// The current stream of a tensor's device; makes it the current device for its lifetime.
class Launch {
 public:
  explicit Launch(const at::Tensor& x)
      : guard_(x.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  cuda::Stream stream() const { return stream_.stream(); }
  void check() const { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

inline at::Tensor float_rows(const at::Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(at::kFloat));
}

/// [rows, columns] with `spare` unused columns after each row.
inline at::Tensor empty_rows(at::IntArrayRef shape, int64_t spare,
                             const at::TensorOptions& options) {
  return at::empty({shape[0], shape[1] + spare}, options).narrow(1, 0, shape[1]);
}

}  // namespace sftrun::kernels::plugin
