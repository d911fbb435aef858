#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "cuda/types.h"
#include "sftrun/kernels/cuda_device.h"
#include "sftrun/kernels/cuda_entry.h"

/// What entry points use to launch kernels of the CUDA library.
namespace sftrun::kernels {

inline cuda::Type cuda_type_of(const at::Tensor& x) {
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
      : guard_(x.device()), stream_(current_cuda_stream(x.device())) {}
  cuda::Stream stream() const { return stream_; }
  /// @throws c10::Error if the last launch failed
  void check() const { check_cuda_launch(); }

 private:
  c10::DeviceGuard guard_;
  cuda::Stream stream_;
};

}  // namespace sftrun::kernels
