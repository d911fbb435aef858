#pragma once

#include <utility>

#include "sftrun/kernels/cuda_function.h"

namespace sftrun::kernels {

class CudaSlot {
 public:
  CudaSlot(const CudaSlot&) = delete;
  CudaSlot& operator=(const CudaSlot&) = delete;

 protected:
  explicit CudaSlot(const CudaFunction& without_address) noexcept;
  ~CudaSlot() = default;
  /// @throws DeviceError when no CUDA library is loaded
  void (*address() const)() { return function_.address ? function_.address : missing(); }

 private:
  [[noreturn]] void (*missing() const)();

  mutable CudaFunction function_;  // the address is written when the library is loaded
};

/// A function that libsftrun_cuda.so has under this name, as a variable at namespace scope:
///     const CudaEntry<decltype(cuda::launch_dropout)> launch_dropout("launch_dropout");
/// The library is refused if it lacks the function, or has it with another signature.
template <typename Signature>
class CudaEntry;
template <typename R, typename... A>
class CudaEntry<R(A...)> final : CudaSlot {
 public:
  explicit CudaEntry(const char* name) noexcept
      : CudaSlot(cuda_function(name, static_cast<R (*)(A...)>(nullptr))) {}
  R operator()(A... arguments) const {
    return reinterpret_cast<R (*)(A...)>(address())(std::forward<A>(arguments)...);
  }
};

}  // namespace sftrun::kernels
