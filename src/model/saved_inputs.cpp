#include "sftrun/model/saved_inputs.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <utility>

namespace sftrun::model {

void SavedInputs::keep(int64_t layer, const at::Tensor& input, const InputStreams* streams) {
  if (static_cast<int64_t>(inputs_.size()) <= layer) inputs_.resize(static_cast<size_t>(layer) + 1);
  Input& kept = at(layer);
  kept.on_device = input;
  if (streams == nullptr) return;
  kept.on_host =
      at::empty(input.sizes(), at::TensorOptions().dtype(input.scalar_type()).pinned_memory(true));
  streams->out.follow_current();
  {
    const c10::StreamGuard guard(streams->out.stream());
    kept.on_host.copy_(input, /*non_blocking=*/true);
  }
  kept.copied = streams->out.until_now();
  // The memory of the input before is free for the next layers when its copy is complete.
  if (const auto before = std::exchange(leaving_, layer)) {
    at(*before).copied();
    at(*before).on_device.reset();
  }
}

bool SavedInputs::has(int64_t layer) const {
  if (layer < 0 || layer >= static_cast<int64_t>(inputs_.size())) return false;
  const Input& input = inputs_[static_cast<size_t>(layer)];
  return input.on_device.defined() || input.on_host.defined();
}

void SavedInputs::bring(Input& input, const InputStreams& streams) {
  if (input.on_device.defined()) return;
  const at::Device device = streams.in.stream().device();
  input.on_device =
      at::empty(input.on_host.sizes(), input.on_host.options().device(device).pinned_memory(false));
  streams.in.follow_current();  // whose memory it gets, and which waited for the copy to the host
  const c10::StreamGuard guard(streams.in.stream());
  input.on_device.copy_(input.on_host, /*non_blocking=*/true);
  input.copied = streams.in.until_now();
}

at::Tensor SavedInputs::take(int64_t layer, const InputStreams* streams) {
  if (streams != nullptr) {
    leaving_.reset();
    bring(at(layer), *streams);
    at(layer).copied();
    if (has(layer - 1)) bring(at(layer - 1), *streams);
  }
  return std::exchange(at(layer), {}).on_device;
}

}  // namespace sftrun::model
