// libcudart: streams, events, capture and graphs.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "cudart_error.h"
#include "entry.h"

namespace stand_in {
namespace {

/// A graph that can be launched: a copy, so that the graph itself may be destroyed.
struct Executable {
  Graph graph;
};

void log_event(const char* kind, const EventObject& event, const Stream& stream) {
  Event(kind)
      .with("id", event.id)
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
}

size_t kernels_in(const Graph& graph) {
  return static_cast<size_t>(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                           [](const Node& node) { return node.kind == "kernel"; }));
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

// ---- Streams.
STAND_IN_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  const auto lock = lock_tables();
  Stream* stream = make_stream((flags & cudaStreamNonBlocking) != 0);
  *handle = reinterpret_cast<cudaStream_t>(stream);
  Event("stream_create").with("stream", stream->id).with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}
STAND_IN_API cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, 0, 0);
}
STAND_IN_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const auto lock = lock_tables();
  destroy_stream(handle);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const auto lock = lock_tables();
  Stream& stream = stream_of(handle, "cudaStreamQuery");
  if (const auto error = forbidden_on(stream, "cudaStreamQuery")) return answer(error);
  return answer(hangs(stream.hang) ? cudaErrorNotReady : cudaSuccess);
}
STAND_IN_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  auto lock = lock_tables();
  Stream& stream = stream_of(handle, "cudaStreamSynchronize");
  if (const auto error = forbidden_on(stream, "cudaStreamSynchronize")) return answer(error);
  if (stream.id == 0) {
    if (const auto error = forbidden_in_capture("cudaStreamSynchronize")) return answer(error);
  }
  Event("sync")
      .with("of", "stream")
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  const HangPointer hang = stream.hang;
  lock.unlock();
  wait_until_over(hang);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const auto lock = lock_tables();
  Stream& stream = stream_of(handle, "cudaStreamWaitEvent");
  EventObject& waited = event_of(event, "cudaStreamWaitEvent");
  log_event("event_wait", waited, stream);
  if (hangs(waited.hang) && !hangs(stream.hang)) stream.hang = waited.hang;
  return answer(capture_wait(waited, stream));
}
STAND_IN_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t call,
                                               void* data, unsigned) {
  const auto lock = lock_tables();
  const auto run = [=] { call(handle, cudaSuccess, data); };
  if (!recorded(stream_of(handle, "cudaStreamAddCallback"), {"host", run})) run();
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t call, void* data) {
  const auto lock = lock_tables();
  const auto run = [=] { call(data); };
  if (!recorded(stream_of(handle, "cudaLaunchHostFunc"), {"host", run})) run();
  return cudaSuccess;
}

// ---- Events.
STAND_IN_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  const auto lock = lock_tables();
  *handle = reinterpret_cast<cudaEvent_t>(make_event());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, 0);
}
STAND_IN_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const auto lock = lock_tables();
  destroy_event(handle);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const auto lock = lock_tables();
  const EventObject& event = event_of(handle, "cudaEventQuery");
  if (const auto error = forbidden_in_capture("cudaEventQuery")) return answer(error);
  return answer(hangs(event.hang) ? cudaErrorNotReady : cudaSuccess);
}
STAND_IN_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned) {
  const auto lock = lock_tables();
  EventObject& event = event_of(handle, "cudaEventRecord");
  Stream& stream = stream_of(on, "cudaEventRecord");
  require(event.device == stream.device, "cudaEventRecord: an event of device ", event.device,
          " on a stream of device ", stream.device);
  capture_record(event, stream);
  event.hang = stream.hang;
  log_event("event_record", event, stream);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  return cudaEventRecordWithFlags(handle, on, 0);
}
STAND_IN_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  auto lock = lock_tables();
  EventObject& event = event_of(handle, "cudaEventSynchronize");
  if (const auto error = forbidden_in_capture("cudaEventSynchronize")) return answer(error);
  Event("sync").with("of", "event").with("device", current_device()).with("id", event.id);
  const HangPointer hang = event.hang;
  lock.unlock();
  wait_until_over(hang);
  return cudaSuccess;
}

// ---- Capture.
STAND_IN_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const auto lock = lock_tables();
  Stream& stream = stream_of_current_device(handle, "cudaStreamBeginCapture");
  Event("capture_begin").with("stream", stream.id).with("device", current_device());
  return answer(begin_capture(stream, mode));
}
STAND_IN_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* result) {
  const auto lock = lock_tables();
  Stream& stream = stream_of(handle, "cudaStreamEndCapture");
  Graph* graph = nullptr;
  const cudaError_t error = end_capture(stream, &graph);
  *result = reinterpret_cast<cudaGraph_t>(graph);
  Event("capture_end")
      .with("stream", stream.id)
      .with("device", current_device())
      .with("error", static_cast<int>(error))
      .with("nodes", graph ? graph->nodes.size() : 0);
  return answer(error);
}
STAND_IN_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle,
                                                  cudaStreamCaptureStatus* status,
                                                  unsigned long long* id, cudaGraph_t* graph,
                                                  const cudaGraphNode_t** dependencies,
                                                  const cudaGraphEdgeData** edges, size_t* count) {
  const auto lock = lock_tables();
  const auto& capture = stream_of(handle, "cudaStreamGetCaptureInfo").capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture ? reinterpret_cast<cudaGraph_t>(&capture->graph) : nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaStreamIsCapturing(cudaStream_t handle,
                                               cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
STAND_IN_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = exchange_thread_mode(*mode);
  return cudaSuccess;
}

// ---- Graphs.
STAND_IN_API cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes,
                                           size_t* count) {
  if (nodes) std::fill_n(nodes, *count, nullptr);
  *count = reinterpret_cast<Graph*>(handle)->nodes.size();
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* result, cudaGraph_t handle,
                                                       unsigned long long) {
  const auto lock = lock_tables();
  auto* executable = new Executable{*reinterpret_cast<Graph*>(handle)};
  *result = reinterpret_cast<cudaGraphExec_t>(executable);
  Event("graph_instantiate")
      .with("nodes", executable->graph.nodes.size())
      .with("device", current_device());
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t handle,
                                              unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(result, handle, flags);
}
STAND_IN_API cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  const auto lock = lock_tables();
  Stream& stream = stream_of_current_device(on, "cudaGraphLaunch");
  const Graph& graph = reinterpret_cast<Executable*>(handle)->graph;
  Event("graph_launch")
      .with("nodes", graph.nodes.size())
      .with("kernels", kernels_in(graph))
      .with("device", current_device())
      .with("stream", stream.id)
      .with("stream_device", stream.device);
  for (const Node& node : graph.nodes) {
    if (node.run) node.run();
  }
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  delete reinterpret_cast<Graph*>(handle);
  return cudaSuccess;
}
STAND_IN_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  delete reinterpret_cast<Executable*>(handle);
  return cudaSuccess;
}
