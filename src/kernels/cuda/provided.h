#pragma once

#include "sftrun/kernels/cuda_function.h"

/// Compiled in the CUDA library only, also by nvcc.
namespace sftrun::kernels::cuda {

/// Gives the engine a function of this library: its `CudaEntry` has the same name and signature.
/// Lives as long as the library.
class Provided {
 public:
  template <typename R, typename... A>
  Provided(const char* name, R (*function)(A...)) : function_(cuda_function(name, function)) {
    function_.next = first();
    first() = &function_;
  }
  Provided(const Provided&) = delete;
  Provided& operator=(const Provided&) = delete;

  /// Chain of all functions of the library.
  static CudaFunction*& first() {
    static CudaFunction* chain = nullptr;
    return chain;
  }

 private:
  CudaFunction function_;
};

}  // namespace sftrun::kernels::cuda
