#pragma once

#include <ATen/core/Tensor.h>

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

 private:
  c10::Storage host_storage(const c10::Storage& storage);
  c10::Storage device_storage(const c10::Storage& storage);
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;       // device, host
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;  // device, host
};

}  // namespace host_backed
