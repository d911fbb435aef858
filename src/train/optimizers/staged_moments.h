#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <functional>
#include <optional>
#include <vector>

namespace sftrun::train {

/// Moments in host memory that are copied to the device part by part for the update (bitsandbytes'
/// paged optimizers use unified memory for this). Two parts are on the device at a time: one is
/// updated while, on separate streams, the next is copied in and the previous one copied back. On a
/// CPU the copies run one after the other.
class StagedMoments {
 public:
  explicit StagedMoments(at::Device device);
  StagedMoments(const StagedMoments&) = delete;
  StagedMoments& operator=(const StagedMoments&) = delete;
  ~StagedMoments();  ///< calls `finish`

  /// Contiguous tensors on the host; in pinned memory if the device is CUDA.
  using Part = std::vector<at::Tensor>;
  /// Updates the device copy of a part in place: tensors with the same shapes and dtypes.
  using Update = std::function<void(size_t part, const Part& on_device)>;
  void run(const std::vector<Part>& parts, const Update& update);
  /// Waits until all parts are back on the host.
  void finish();
  uint64_t device_bytes() const;

 private:
  struct Slot {
    std::vector<at::Tensor> memory;  ///< uint8 buffers, as large as the largest part needs
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

}  // namespace sftrun::train
