#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <functional>
#include <optional>
#include <vector>

namespace sftrun::train {

/// Moments that lie in host memory, on the device part by part while they are updated
/// (bitsandbytes' paged optimizers do so by unified memory). Two parts are on the device at a time:
/// one is updated while the next comes and the last goes back, on streams of their own. On a CPU
/// the same copies, one after the other.
class StagedMoments {
 public:
  explicit StagedMoments(at::Device device);
  StagedMoments(const StagedMoments&) = delete;
  StagedMoments& operator=(const StagedMoments&) = delete;
  ~StagedMoments();  ///< waits as `finish`

  /// Tensors on the host, contiguous; on CUDA in pinned memory.
  using Part = std::vector<at::Tensor>;
  /// Changes what stands on the device for a part: tensors of the same shapes and dtypes.
  using Update = std::function<void(size_t part, const Part& on_device)>;
  void run(const std::vector<Part>& parts, const Update& update);
  /// Until everything is back on the host.
  void finish();
  uint64_t device_bytes() const;

 private:
  struct Slot {
    std::vector<at::Tensor> memory;  ///< bytes, as many as the largest part has
    Part on_device;
    std::optional<c10::Event> arrived, updated, left;
  };
  void reserve(const std::vector<Part>& parts);
  void bring(const Part& part, Slot& slot);
  void send_back(const Part& part, Slot& slot);
  c10::Stream current() const;

  at::Device device_;
  std::optional<c10::Stream> in_, out_;  ///< none on a CPU
  std::array<Slot, 2> slots_;
};

/// Zeros in host memory; pinned where `device` copies from it.
at::Tensor host_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

}  // namespace sftrun::train
