#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sftrun/model/packed_batch.h"

/// Collects the small arrays of a micro-batch in one host buffer and copies it to the device at
/// once.
namespace sftrun::model {

/// Copies one tensor to the device; asynchronous on its current stream if `is_pinned`.
at::Tensor sent(const at::Tensor& host, at::Device device, bool is_pinned);

class Staging {
 public:
  /// @param target must outlive this
  /// @param is_pinned CUDA: copy asynchronously from page-locked memory on the copy stream; else
  /// the copy synchronises
  Staging(const BatchTarget& target, bool is_pinned);

  /// Adds an array of `count` values.
  /// @param write called by `send` with the memory to fill, std::span<T>
  /// @param to receives the device array [count]; must outlive `send`
  template <typename T, typename Write>
  void add(int64_t count, Write write, at::Tensor& to) {
    parts_.push_back({count,
                      c10::CppTypeToScalarType<T>::value,
                      [count, write](void* room) {
                        write(std::span<T>(static_cast<T*>(room), static_cast<size_t>(count)));
                      },
                      &to,
                      {count}});
  }
  /// Adds a copy of `values`, which must outlive `send`.
  template <typename T, typename Values>
  void add_copy(const Values& values, at::Tensor& to) {
    add<T>(
        static_cast<int64_t>(values.size()),
        [&values](std::span<T> room) { std::copy(values.begin(), values.end(), room.begin()); },
        to);
  }

  /// Adds a tensor of the host, contiguous; `to`, which may be the same, receives it in its shape.
  void add_tensor(const at::Tensor& host, at::Tensor& to);

  /// Call once. The device's current stream waits for the copy; the host does not if the memory is
  /// pinned.   @return all arrays as bytes
  at::Tensor send();

 private:
  struct Part {
    int64_t count;
    at::ScalarType dtype;
    std::function<void(void*)> write;
    at::Tensor* to;
    std::vector<int64_t> sizes;
    int64_t bytes() const { return count * static_cast<int64_t>(c10::elementSize(dtype)); }
  };
  at::Tensor on_device(const at::Tensor& host) const;

  const BatchTarget& target_;
  bool is_pinned_;
  std::vector<Part> parts_;
};

}  // namespace sftrun::model
