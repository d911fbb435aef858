#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <driver_types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

/// Capture of streams: what a captured stream is asked to do is recorded, and not done. One capture
/// at a time; its streams may be used by several threads, as autograd does. Errors are c10::Error
/// with the words of CUDA's runtime, and spoil the capture.
namespace host_backed {

/// What a capture leaves. Blocks of the card's memory that were allocated on its streams stay until
/// it is destroyed, also where their tensors are gone.
class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();

  std::vector<std::function<void()>> calls;  ///< in the order in which they were asked for
  std::vector<void*> blocks;
};

/// Of this thread; 0 is the default stream of every device, other numbers are of one device.
c10::StreamId current_stream_id(c10::DeviceIndex device);

bool is_captured(c10::StreamId stream);
/// On a captured stream.
void record(c10::StreamId stream, std::function<void()> call);
/// The block belongs to the capture if the stream is captured.
void add_block(c10::StreamId stream, void* block);

uint64_t begin_capture(c10::StreamId stream, cudaStreamCaptureMode mode);
/// The capture is over, also where this throws.
std::unique_ptr<Recording> end_capture(c10::StreamId stream);
/// Ends it without a result if it is open.
void abandon_capture(uint64_t capture);

/// Throws if what this thread may not do while it captures.
void refuse_in_capture(const char* what);
/// Throws if the stream is captured.
void refuse_on_captured(c10::StreamId stream, const char* what);

/// Work that was asked for before is done, or recorded.
struct Event {
  std::chrono::steady_clock::time_point time;
  uint64_t capture = 0;  ///< that it was recorded in; 0: none
  c10::StreamId stream = 0;
  size_t calls = 0;  ///< recorded before it
};
void record_event(Event& event, c10::StreamId stream);
void wait_for_event(const Event& event, c10::StreamId stream);
/// Throws if the event was recorded in a capture.
void refuse_captured_event(const Event& event, const char* what);

}  // namespace host_backed
