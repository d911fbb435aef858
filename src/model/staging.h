#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "sftrun/model/packed_batch.h"

/// A micro-batch's small arrays on their way to the device: written side by side into one host
/// buffer and copied at once.
namespace sftrun::model {

class Staging {
 public:
  /// @param bytes of all arrays together, with kAlignment for each
  /// @param target must outlive this
  /// @param is_pinned of CUDA: page-locked memory, copied on a stream of its own while the device
  /// computes; else the copy waits for the device
  Staging(int64_t bytes, const BatchTarget& target, bool is_pinned);

  static constexpr int64_t kAlignment = 16;

  /// Room for an array, to be filled before `send`.
  template <typename T>
  std::span<T> add(int64_t count) {
    return {static_cast<T*>(place(count, c10::CppTypeToScalarType<T>::value)),
            static_cast<size_t>(count)};
  }

  /// The arrays in order of `add`, each [count] on the device. The device's current stream waits
  /// for the copy; the host does not, where the memory is pinned.
  std::vector<at::Tensor> send() const;

 private:
  struct Part {
    int64_t offset, count;
    at::ScalarType dtype;
  };
  void* place(int64_t count, at::ScalarType dtype);
  at::Tensor on_device() const;

  const BatchTarget& target_;
  bool is_pinned_;
  at::Tensor host_;  // uint8
  int64_t used_ = 0;
  std::vector<Part> parts_;
};

}  // namespace sftrun::model
