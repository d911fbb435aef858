#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sftrun/kernels/side_stream.h"

namespace sftrun::model {

/// Streams for copies of layers' inputs to the host's memory and back.
struct InputStreams {
  explicit InputStreams(at::Device device) : out(device), in(device) {}
  kernels::SideStream out, in;
};

/// Inputs of layers between the forward pass and a backward pass that computes the layers again
/// (gradient checkpointing). On a GPU they may wait in the host's memory: each is copied there while
/// the next layer computes, and back while the layer above it runs its backward pass.
class SavedInputs {
 public:
  /// Layers are kept in ascending and taken in descending order.
  /// @param input [T, hidden] of a layer; not written afterwards
  /// @param streams null: it stays on the device
  void keep(int64_t layer, const at::Tensor& input, const InputStreams* streams);
  bool has(int64_t layer) const;
  /// Hands over the input of a layer, and starts to bring that of the layer below.
  at::Tensor take(int64_t layer, const InputStreams* streams);

 private:
  struct Input {
    at::Tensor on_device;
    at::Tensor on_host;            // pinned; undefined: it stays on the device
    std::function<void()> copied;  // the current stream waits for the last copy
  };
  Input& at(int64_t layer) { return inputs_.at(static_cast<size_t>(layer)); }
  void bring(Input& input, const InputStreams& streams);

  std::vector<Input> inputs_;
  std::optional<int64_t> leaving_;  // the layer whose input is being copied to the host
};

}  // namespace sftrun::model
