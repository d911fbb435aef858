#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>

namespace sftrun::kernels {

/// A stream beside the current one, for copies that go on while the device computes.
class SideStream {
 public:
  /// @param device CUDA
  explicit SideStream(at::Device device);

  c10::Stream stream() const { return stream_; }
  /// Makes this stream wait for what is queued on the current one.
  void follow_current() const;
  /// @return makes the stream that is current when it is called wait for what is queued on this
  /// stream now
  std::function<void()> until_now() const;
  /// Waits on the host until what is queued on this stream is done.
  void synchronize() const;

 private:
  at::Device device_;
  c10::Stream stream_;
};

}  // namespace sftrun::kernels
