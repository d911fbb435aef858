// LibTorch's at::cuda::CUDAGraph: a replay runs what was recorded, in its order. As on a card, only
// the recorded work leaves values in the graph's memory: that holds NaN when a replay begins.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capture.h"
#include "memory.h"

namespace host_backed {
namespace {

/// A graph that can be replayed.
struct Graph {
  c10::MempoolId_t pool;
  std::unique_ptr<Recording> recording;
  /// Of earlier graphs of its pool, whose tensors were gone: LibTorch's allocator may hand them out
  /// again to this one.
  std::vector<void*> shared;
};

/// Graphs of a pool in the order of their captures.
std::mutex mutex;
std::map<c10::MempoolId_t, std::vector<Graph*>> pools;

Graph* make_graph(c10::MempoolId_t pool, std::unique_ptr<Recording> recording) {
  const std::lock_guard lock(mutex);
  auto* graph = new Graph{pool, std::move(recording), {}};
  for (const Graph* earlier : pools[pool])
    for (void* block : earlier->recording->blocks)
      if (!is_in_use(block)) graph->shared.push_back(block);
  pools[pool].push_back(graph);
  return graph;
}

void destroy_graph(Graph* graph) {
  const std::lock_guard lock(mutex);
  std::erase(pools[graph->pool], graph);
  delete graph;
}

/// Garbage in all memory that a replay may write by way of its own blocks.
void fill_memory(const Graph& graph) {
  const std::lock_guard lock(mutex);
  const auto fill_all = [](const std::vector<void*>& blocks) {
    for (void* block : blocks) fill(block);
  };
  fill_all(graph.recording->blocks);
  fill_all(graph.shared);
  for (const Graph* other : pools[graph.pool]) {
    const bool may_overlap = std::ranges::any_of(other->shared, [&](void* block) {
      return std::ranges::find(graph.recording->blocks, block) != graph.recording->blocks.end();
    });
    if (may_overlap) fill_all(other->recording->blocks);
  }
}

/// Once for a replay: a graph has many blocks.
class OpenMemory {
 public:
  explicit OpenMemory(const Recording& recording) {
    open_memory();
    for (void* block : recording.blocks) open_block(block);
  }
  ~OpenMemory() { close_memory(); }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

Graph* graph_of(cudaGraphExec_t handle) {
  return reinterpret_cast<Graph*>(handle);
}

c10::MempoolId_t new_pool(bool is_graphs_own) {
  static std::atomic<c10::CaptureId_t> last{0};
  const c10::CaptureId_t id = ++last;
  return is_graphs_own ? c10::MempoolId_t{id, 0} : c10::MempoolId_t{0, id};
}

}  // namespace
}  // namespace host_backed

namespace at::cuda {

MempoolId_t graph_pool_handle() {
  return host_backed::new_pool(/*is_graphs_own=*/false);
}

CUDAGraph::CUDAGraph(bool keep_graph)
    : mempool_id_{0, 0}, capture_stream_(getCurrentCUDAStream()), keep_graph_(keep_graph) {
  TORCH_CHECK(!keep_graph, "host-backed device: graphs that keep their CUDA graph are not there");
}

CUDAGraph::~CUDAGraph() {
  reset();
}

void CUDAGraph::capture_begin(MempoolId_t pool, cudaStreamCaptureMode capture_mode) {
  TORCH_CHECK(!has_graph_exec_,
              "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
              "create a new instance.");
  const CUDAStream stream = getCurrentCUDAStream();
  TORCH_CHECK(stream != getDefaultCUDAStream(),
              "CUDA graphs must be captured on a non-default stream. (However, after capture, it's "
              "ok to replay them on the default stream.)");
  capture_id_ = host_backed::begin_capture(stream.id(), capture_mode);
  capture_stream_ = stream;
  capture_dev_ = stream.device_index();
  mempool_id_ = pool == MempoolId_t{0, 0} ? host_backed::new_pool(/*is_graphs_own=*/true) : pool;
}

void CUDAGraph::capture_end() {
  TORCH_CHECK(getCurrentCUDAStream() == capture_stream_,
              "Capture must end on the same stream it began on.");
  auto recording = host_backed::end_capture(capture_stream_.id());
  graph_exec_ =
      reinterpret_cast<cudaGraphExec_t>(host_backed::make_graph(mempool_id_, std::move(recording)));
  has_graph_exec_ = capture_ended_ = true;
}

void CUDAGraph::replay() {
  TORCH_CHECK(capture_ended_, "Called CUDAGraph::replay without a preceding successful capture.");
  host_backed::refuse_in_capture("CUDAGraph::replay");
  const c10::OptionalDeviceGuard guard{capture_stream_.device()};
  const AutoDispatchBelowADInplaceOrView below;
  const host_backed::Graph* graph = host_backed::graph_of(graph_exec_);
  host_backed::fill_memory(*graph);
  const host_backed::OpenMemory open(*graph->recording);
  for (const auto& call : graph->recording->calls) call();
}

void CUDAGraph::reset() {
  host_backed::abandon_capture(capture_id_);
  if (has_graph_exec_) host_backed::destroy_graph(host_backed::graph_of(graph_exec_));
  graph_exec_ = nullptr;
  has_graph_exec_ = capture_ended_ = false;
}

MempoolId_t CUDAGraph::pool() {
  TORCH_CHECK(capture_ended_, "Called CUDAGraph::pool() without a preceding successful capture.");
  return mempool_id_;
}

}  // namespace at::cuda
