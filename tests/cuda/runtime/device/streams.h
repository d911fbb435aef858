#pragma once

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "faults.h"

/// Streams, events and what is captured of a stream. Everything is done when it is asked for: what
/// a stream orders has happened already.
namespace stand_in {

/// A node of a graph; `run` moves bytes, and is empty for kernels.
struct Node {
  std::string kind;
  std::function<void()> run;
};

struct Graph {
  std::vector<Node> nodes;
};

/// What is being recorded, of the stream that began it and of those that joined.
struct Capture {
  uint64_t id = 0;
  cudaStreamCaptureMode mode{};
  std::thread::id thread;
  bool invalid = false;
  struct Stream* origin = nullptr;
  Graph graph;
  std::map<struct Stream*, uint64_t> unjoined;  ///< of streams that joined: their last node
};

struct Stream {
  uint64_t id = 0;
  int device = 0;
  bool non_blocking = false;
  std::shared_ptr<Capture> capture;
  HangPointer hang;  ///< what its work waits for; null: none
};

struct EventObject {
  uint64_t id = 0;
  int device = 0;
  bool recorded = false;
  std::shared_ptr<Capture> capture;  ///< that it was recorded in
  Stream* stream = nullptr;          ///< and of which stream
  uint64_t nodes = 0;                ///< and after how many nodes
  HangPointer hang;                  ///< of the stream, when it was recorded
};

Stream* make_stream(bool non_blocking);
void destroy_stream(cudaStream_t handle);
/// Of a handle: a live stream, or the current device's default stream.
Stream& stream_of(cudaStream_t handle, const char* what);
/// Work on a stream of another device than the current one is a mistake.
Stream& stream_of_current_device(cudaStream_t handle, const char* what);

EventObject* make_event();
void destroy_event(cudaEvent_t handle);
EventObject& event_of(cudaEvent_t handle, const char* what);

/// The hang of any stream of a device.
HangPointer hang_of_device(int device);

size_t open_streams();
size_t open_events();

// ---- Capture.
/// True if the stream is being captured: then the node is recorded, and not to be done now.
bool recorded(Stream& stream, Node node);

/// What may not be done while anything is captured, unless this thread is relaxed: the error, and
/// the capture is spoilt.
cudaError_t forbidden_in_capture(const char* what);
/// Waiting for a stream that is captured likewise.
cudaError_t forbidden_on(Stream& stream, const char* what);

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream, Graph** graph);
cudaStreamCaptureMode exchange_thread_mode(cudaStreamCaptureMode mode);
void capture_record(EventObject& event, Stream& stream);
cudaError_t capture_wait(EventObject& event, Stream& stream);

}  // namespace stand_in
