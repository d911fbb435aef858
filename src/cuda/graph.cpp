#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "cuda/provided.h"
#include "sftrun/kernels/graph.h"

namespace sftrun::kernels {
namespace {

/// LibTorch's CUDAGraph, extended to abort a capture.
class OpenGraph final : public at::cuda::CUDAGraph {
 public:
  /// Call after an error. If CUDA has ended the capture itself, LibTorch's device and pinned-memory
  /// allocators do not know: they would keep memory that streams share, and use this object in
  /// later captures.
  void give_up() {
    if (!capture_ended_) without_errors([&] { capture_end(); });
    if (!capture_ended_) {
      namespace on_device = c10::cuda::CUDACachingAllocator;
      without_errors([&] { on_device::endAllocateToPool(capture_dev_, mempool_id_); });
      without_errors([&] { on_device::releasePool(capture_dev_, mempool_id_); });
      if (at::HostAllocator* pinned = at::getHostAllocator(at::kCUDA)) {
        without_errors([&] { pinned->end_allocate_to_pool(mempool_id_); });
        without_errors([&] { pinned->release_pool(mempool_id_); });
      }
    }
    (void)cudaGetLastError();  // clears the error, which the next launch would report otherwise
  }

 private:
  template <typename Body>
  static void without_errors(const Body& body) {
    try {
      body();
    } catch (const c10::Error&) {
    }
  }
};

class CapturedGraph final : public Graph {
 public:
  CapturedGraph(at::Device device, const CapturedGraph* pool_owner)
      : device_(device),
        stream_(pool_owner
                    ? pool_owner->stream_
                    : c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  void record(const CapturedGraph* pool_owner, const std::function<void()>& work) {
    const c10::cuda::CUDAStreamGuard guard(stream_);  // the default stream cannot be captured
    // Thread-local mode: only calls of this thread are captured; other threads continue.
    try {
      graph_.capture_begin(pool_owner ? pool_owner->pool() : c10::MempoolId_t{},
                           cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      graph_.give_up();
      throw;
    }
  }

  void launch() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  c10::MempoolId_t pool() const { return graph_.pool(); }

  at::Device device_;
  // Shared by graphs that share memory: LibTorch allocates a cuBLAS workspace per stream.
  c10::cuda::CUDAStream stream_;
  mutable OpenGraph graph_;  // mutable: `pool` is not const
};

std::unique_ptr<Graph> capture_graph(at::Device device, const Graph* pool_owner,
                                     const std::function<void()>& work) {
  const auto* other = static_cast<const CapturedGraph*>(pool_owner);
  auto graph = std::make_unique<CapturedGraph>(device, other);
  graph->record(other, work);
  return graph;
}

const cuda::Provided kCapture("capture_graph", capture_graph);

}  // namespace
}  // namespace sftrun::kernels
