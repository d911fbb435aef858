#pragma once

#include <cstddef>
#include <type_traits>
#include <typeinfo>

/// Also compiled by nvcc: C++17, without LibTorch.
namespace sftrun::kernels {

/// A function of the CUDA library. The engine, which links none of the library's symbols, finds it
/// by name; two builds whose signatures or sizes differ do not match.
struct CudaFunction {
  const char* name;
  const char* signature;
  size_t argument_bytes;  ///< structs may change without their signature
  void (*address)();      ///< null: not known
  CudaFunction* next;
};

/// @param function may be null
template <typename R, typename... A>
CudaFunction cuda_function(const char* name, R (*function)(A...)) {
  return {name, typeid(R(A...)).name(), (sizeof(std::decay_t<A>) + ... + size_t{0}),
          reinterpret_cast<void (*)()>(function), nullptr};
}

}  // namespace sftrun::kernels
