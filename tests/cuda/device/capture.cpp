#include "capture.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "memory.h"

namespace host_backed {
namespace {

struct Capture {
  uint64_t id = 0;
  cudaStreamCaptureMode mode{};
  std::thread::id thread = std::this_thread::get_id();
  c10::StreamId origin = 0;
  /// Streams that joined: how many calls were recorded up to their last one, 0 where the origin
  /// waits for it.
  std::map<c10::StreamId, size_t> joined;
  bool is_invalid = false;
  std::unique_ptr<Recording> recording = std::make_unique<Recording>();

  bool has(c10::StreamId stream) const { return stream == origin || joined.contains(stream); }
  size_t calls() const { return recording->calls.size(); }
};

constexpr size_t kJoined = 0;  // a stream's mark is its last call's number plus one
std::mutex mutex;
std::unique_ptr<Capture> open;  // under the mutex
std::atomic<bool> is_any_open = false;

/// @throws c10::Error always
[[noreturn]] void spoil(const char* words, const char* what) {
  if (open) open->is_invalid = true;
  TORCH_CHECK(false, "CUDA error: ", words, ", in ", what);
}

void require_valid() {
  TORCH_CHECK(!open->is_invalid,
              "CUDA error: operation failed due to a previous error during capture");
}

bool stops_this_thread(const Capture& capture) {
  if (capture.mode == cudaStreamCaptureModeGlobal) return true;
  return capture.mode == cudaStreamCaptureModeThreadLocal &&
         capture.thread == std::this_thread::get_id();
}

constexpr const char* kNotPermitted = "operation not permitted when stream is capturing";

}  // namespace

Recording::~Recording() {
  for (void* block : blocks) let_go(block);
}

bool is_captured(c10::StreamId stream) {
  if (!is_any_open) return false;
  const std::lock_guard lock(mutex);
  return open && open->has(stream);
}

void record(c10::StreamId stream, std::function<void()> call) {
  const std::lock_guard lock(mutex);
  TORCH_INTERNAL_ASSERT(open && open->has(stream));
  require_valid();
  open->recording->calls.push_back(std::move(call));
  if (stream != open->origin) open->joined[stream] = open->calls() + 1;
}

void add_block(c10::StreamId stream, void* block) {
  if (!is_any_open || block == nullptr) return;
  const std::lock_guard lock(mutex);
  if (!open || !open->has(stream)) return;
  keep(block);
  open->recording->blocks.push_back(block);
}

uint64_t begin_capture(c10::StreamId stream, cudaStreamCaptureMode mode) {
  static uint64_t last_id = 0;
  const std::lock_guard lock(mutex);
  TORCH_CHECK(!open, "CUDA error: the operation cannot be performed in the present state");
  open = std::make_unique<Capture>();
  open->id = ++last_id;
  open->mode = mode;
  open->origin = stream;
  is_any_open = true;
  return open->id;
}

std::unique_ptr<Recording> end_capture(c10::StreamId stream) {
  std::unique_ptr<Capture> ended;
  {
    const std::lock_guard lock(mutex);
    TORCH_CHECK(open && open->has(stream),
                "CUDA error: the operation cannot be performed in the present state");
    is_any_open = false;
    ended = std::move(open);
  }
  TORCH_CHECK(ended->origin == stream,
              "CUDA error: capture was not ended in the same stream as it began");
  TORCH_CHECK(
      ended->mode == cudaStreamCaptureModeRelaxed || ended->thread == std::this_thread::get_id(),
      "CUDA error: attempt to terminate a thread-local capture sequence from another thread");
  TORCH_CHECK(!ended->is_invalid,
              "CUDA error: operation failed due to a previous error during capture");
  for (const auto& [id, mark] : ended->joined)
    TORCH_CHECK(mark == kJoined, "CUDA error: capturing stream has unjoined work, of stream ", id);
  return std::move(ended->recording);
}

void abandon_capture(uint64_t capture) {
  std::unique_ptr<Capture> ended;
  const std::lock_guard lock(mutex);
  if (!open || open->id != capture) return;
  is_any_open = false;
  ended = std::move(open);
}

void refuse_in_capture(const char* what) {
  if (!is_any_open) return;
  const std::lock_guard lock(mutex);
  if (open && stops_this_thread(*open)) spoil(kNotPermitted, what);
}

void refuse_on_captured(c10::StreamId stream, const char* what) {
  if (!is_any_open) return;
  const std::lock_guard lock(mutex);
  if (open && open->has(stream)) spoil(kNotPermitted, what);
}

void record_event(Event& event, c10::StreamId stream) {
  event = {.time = std::chrono::steady_clock::now(), .stream = stream};
  if (!is_any_open) return;
  const std::lock_guard lock(mutex);
  if (!open || !open->has(stream)) return;
  event.capture = open->id;
  event.calls = open->calls();
}

void wait_for_event(const Event& event, c10::StreamId stream) {
  const std::lock_guard lock(mutex);
  const bool is_waiter_captured = open && open->has(stream);
  if (event.capture == 0) {
    if (is_waiter_captured)
      spoil("dependency created on uncaptured work in another stream", "a wait for an event");
    return;
  }
  if (!open || open->id != event.capture)
    spoil("operation not permitted on an event last recorded in a capturing stream",
          "a wait for an event");
  if (stream == 0)
    spoil("operation would make the legacy stream depend on a capturing blocking stream",
          "a wait for an event");
  if (!is_waiter_captured) open->joined[stream] = open->calls() + 1;
  const auto waited = open->joined.find(event.stream);
  if (event.stream != stream && waited != open->joined.end() && waited->second <= event.calls + 1)
    waited->second = kJoined;
}

void refuse_captured_event(const Event& event, const char* what) {
  refuse_in_capture(what);
  TORCH_CHECK(
      event.capture == 0,
      "CUDA error: operation not permitted on an event last recorded in a capturing stream, "
      "in ",
      what);
}

}  // namespace host_backed
