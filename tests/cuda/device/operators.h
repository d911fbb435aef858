#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <utility>
#include <vector>

namespace host_backed {

/// Tensors of a card as tensors of the CPU over the same memory, for the time of one operator; and
/// its results back.
class Call {
 public:
  /// Itself where it is none of the card's.
  at::Tensor to_host(const at::Tensor& tensor);
  /// Of a result: an argument, a view of one, or new.
  at::Tensor to_device(const at::Tensor& tensor);
  /// What the operator did to the shapes and storages of its arguments.
  void write_back();
  c10::Device device{c10::kCUDA, -1};  ///< of the first argument
  /// For the shapes of results alone: zeros in place of the memory, and no values in the results.
  bool is_captured = false;

 private:
  c10::Storage host_storage(const c10::Storage& storage);
  c10::Storage device_storage(const c10::Storage& storage);
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // device, host
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // device, host
};

/// A tensor of these sizes and strides over a storage.
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like);
bool same_layout(const at::Tensor& a, const at::Tensor& b);

/// Takes the place of LibTorch's kernel for the CPU, which there may be none of.
/// @param name as in cuda_operators.txt
void set_host_kernel(const std::string& name, c10::KernelFunction kernel);
/// All tensors of the stack are of the CPU.
void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// Of every operator of the card without a kernel of its own.
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Calls body(tensor) for every tensor among the values, and replaces it by what that returns.
template <typename Body>
void replace_tensors(c10::IValue& value, const Body& body) {
  if (value.isTensor()) {
    value = body(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(body(tensor));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<at::Tensor>(body(*tensor)) : std::nullopt);
    value = list;
  }
}

}  // namespace host_backed
