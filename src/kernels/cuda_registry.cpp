#include "sftrun/kernels/cuda_registry.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <string_view>

#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_entry.h"

namespace sftrun::kernels {
namespace {

/// The program's entries, linked before main() or by dlopen. Their addresses are written once, when
/// the CUDA library is loaded and before worker threads exist.
struct Entries {
  CudaFunction* first = nullptr;
  bool are_registered = false;
};
Entries& entries() {
  static Entries all;
  return all;
}

const CudaFunction* function_named(std::string_view name, const CudaFunction* first) {
  while (first != nullptr && name != first->name) first = first->next;
  return first;
}

bool is_same(const CudaFunction& one, const CudaFunction& other) {
  return std::string_view(one.signature) == other.signature &&
         one.argument_bytes == other.argument_bytes;
}

}  // namespace

CudaSlot::CudaSlot(const CudaFunction& without_address) noexcept : function_(without_address) {
  function_.next = entries().first;
  entries().first = &function_;
}

void (*CudaSlot::missing() const)() {
  if (entries().are_registered)  // in spite of cuda_difference()
    invariant_failed(__FILE__, __LINE__, fmt::format("libsftrun_cuda.so has {}", function_.name));
  throw DeviceError("the CUDA kernels are not loaded", "libsftrun_cuda.so",
                    "build where a CUDA compiler is installed, or run with --device cpu");
}

void register_cuda_functions(const CudaFunction* first) {
  // By default cuBLAS may reduce partial sums of a product in 16 bits.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  for (CudaFunction* entry = entries().first; entry != nullptr; entry = entry->next) {
    const CudaFunction* of_library = function_named(entry->name, first);
    if (of_library != nullptr && is_same(*of_library, *entry)) entry->address = of_library->address;
  }
  entries().are_registered = true;
}

std::string cuda_difference(const CudaFunction* first) {
  for (const CudaFunction* entry = entries().first; entry != nullptr; entry = entry->next) {
    const CudaFunction* of_library = function_named(entry->name, first);
    if (of_library == nullptr) return fmt::format("it has no {}", entry->name);
    if (!is_same(*of_library, *entry)) return fmt::format("its {} is another", entry->name);
  }
  return {};
}

bool has_cuda_kernels() {
  return entries().are_registered;
}

}  // namespace sftrun::kernels
