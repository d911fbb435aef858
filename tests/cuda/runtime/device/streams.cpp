#include "streams.h"

#include <set>
#include <utility>

#include "devices.h"
#include "report.h"
#include "settings.h"

namespace stand_in {
namespace {

uint64_t next_id() {
  static uint64_t last = 0;
  return ++last;
}

/// Objects by the handles given out. Never destroyed: libraries clean up after main.
template <typename Object>
std::map<const void*, std::unique_ptr<Object>>& live() {
  static auto* const result = new std::map<const void*, std::unique_ptr<Object>>;
  return *result;
}

template <typename Object>
Object* made(int device) {
  auto object = std::make_unique<Object>();
  object->id = next_id();
  object->device = device;
  Object* handle = object.get();
  live<Object>()[handle] = std::move(object);
  return handle;
}

template <typename Object>
Object& found(const void* handle, const char* what, const char* kind) {
  const auto entry = live<Object>().find(handle);
  require(entry != live<Object>().end(), what, ": ", handle, " is not a live ", kind);
  return *entry->second;
}

Stream& default_stream(int device) {
  static auto* const streams = new std::map<int, Stream>;
  Stream& stream = (*streams)[device];
  stream.device = device;
  return stream;
}

std::set<std::shared_ptr<Capture>>& captures() {
  static auto* const result = new std::set<std::shared_ptr<Capture>>;
  return *result;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/// CUDA runtime API, cudaThreadExchangeStreamCaptureMode: which captures stop an unsafe call.
bool stops_this_thread(const Capture& capture) {
  const bool own = capture.thread == std::this_thread::get_id();
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  if (own) return capture.mode != cudaStreamCaptureModeRelaxed;
  return thread_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

cudaError_t spoilt(Capture& capture, const char* what) {
  capture.invalid = true;
  Event("refused_in_capture").with("what", what);
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

Stream* make_stream(bool non_blocking) {
  Stream* stream = made<Stream>(current_device());
  stream->non_blocking = non_blocking;
  return stream;
}

void destroy_stream(cudaStream_t handle) {
  found<Stream>(handle, "cudaStreamDestroy", "stream");
  live<Stream>().erase(handle);
}

Stream& stream_of(cudaStream_t handle, const char* what) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return default_stream(current_device());
  return found<Stream>(handle, what, "stream");
}

Stream& stream_of_current_device(cudaStream_t handle, const char* what) {
  Stream& stream = stream_of(handle, what);
  require_chosen_device(what);
  require(stream.device == current_device(), what, " on a stream of device ", stream.device,
          " while device ", current_device(), " is current");
  return stream;
}

EventObject* make_event() {
  return made<EventObject>(current_device());
}

void destroy_event(cudaEvent_t handle) {
  found<EventObject>(handle, "cudaEventDestroy", "event");
  live<EventObject>().erase(handle);
}

EventObject& event_of(cudaEvent_t handle, const char* what) {
  return found<EventObject>(handle, what, "event");
}

HangPointer hang_of_device(int device) {
  for (const auto& [handle, stream] : live<Stream>())
    if (stream->device == device && hangs(stream->hang)) return stream->hang;
  return default_stream(device).hang;
}

size_t open_streams() {
  return live<Stream>().size();
}
size_t open_events() {
  return live<EventObject>().size();
}

bool recorded(Stream& stream, Node node) {
  if (!stream.capture) return false;
  Capture& capture = *stream.capture;
  capture.graph.nodes.push_back(std::move(node));
  if (&stream != capture.origin) capture.unjoined[&stream] = capture.graph.nodes.size();
  return true;
}

cudaError_t forbidden_in_capture(const char* what) {
  for (const auto& capture : captures()) {
    if (stops_this_thread(*capture)) return spoilt(*capture, what);
  }
  return cudaSuccess;
}

cudaError_t forbidden_on(Stream& stream, const char* what) {
  return stream.capture ? spoilt(*stream.capture, what) : cudaSuccess;
}

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
  if (stream.id == 0) return cudaErrorStreamCaptureUnsupported;  // the default stream
  if (stream.capture) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->invalid = settings().captures_fail == "begun";
  captures().insert(capture);
  stream.capture = std::move(capture);
  return cudaSuccess;
}

cudaError_t end_capture(Stream& stream, Graph** graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  for (const auto& [handle, each] : live<Stream>()) {
    if (each->capture == capture) each->capture = nullptr;
  }
  captures().erase(capture);
  if (capture->invalid || settings().captures_fail == "ended")
    return cudaErrorStreamCaptureInvalidated;
  if (!capture->unjoined.empty()) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph(std::move(capture->graph));
  return cudaSuccess;
}

cudaStreamCaptureMode exchange_thread_mode(cudaStreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

void capture_record(EventObject& event, Stream& stream) {
  event.recorded = true;
  event.capture = stream.capture;
  event.stream = &stream;
  event.nodes = stream.capture ? stream.capture->graph.nodes.size() : 0;
}

cudaError_t capture_wait(EventObject& event, Stream& stream) {
  const std::shared_ptr<Capture> capture = event.capture;
  if (!capture || !captures().contains(capture)) {
    // A captured stream may wait only for what is captured with it.
    return stream.capture && event.recorded ? cudaErrorStreamCaptureIsolation : cudaSuccess;
  }
  if (stream.capture && stream.capture != capture) return cudaErrorStreamCaptureMerge;
  if (!stream.capture) {
    stream.capture = capture;
    capture->unjoined[&stream] = capture->graph.nodes.size();
  }
  const auto waited = capture->unjoined.find(event.stream);
  if (waited != capture->unjoined.end() && waited->second <= event.nodes)
    capture->unjoined.erase(waited);
  return cudaSuccess;
}

}  // namespace stand_in
