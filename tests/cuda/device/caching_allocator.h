#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>
#include <vector>

namespace host_backed {

/// What LibTorch asks of CUDA's allocator and our code does not: refused.
class PartOfCachingAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  using Device = c10::DeviceIndex;
  using Pool = c10::MempoolId_t;

  void init(int /*devices*/) override {}
  std::string name() override { return "host-backed device"; }
  bool isEnabled() const override { return true; }
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& /*data*/, c10::cuda::CUDAStream /*on*/) override {}

  void* raw_alloc(size_t /*bytes*/) override { refuse("raw_alloc"); }
  void* raw_alloc_with_stream(size_t /*bytes*/, cudaStream_t /*on*/) override {
    refuse("raw_alloc_with_stream");
  }
  void raw_delete(void* /*data*/) override { refuse("raw_delete"); }
  double getMemoryFraction(Device /*device*/) override { refuse("getMemoryFraction"); }
  void setMemoryFraction(double /*fraction*/, Device /*device*/) override {
    refuse("setMemoryFraction");
  }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      Device /*device*/) override {
    refuse("getExpandableSegmentSizes");
  }
  void enable(bool /*value*/) override { refuse("enable"); }
  void cacheInfo(Device /*device*/, size_t* /*largest*/) override { refuse("cacheInfo"); }
  void* getBaseAllocation(void* /*data*/, size_t* /*size*/) override {
    refuse("getBaseAllocation");
  }
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(Pool /*pool*/, bool /*traces*/) override {
    refuse("snapshot");
  }
  void beginAllocateToPool(Device /*device*/, Pool /*pool*/,
                           std::function<bool(cudaStream_t)> /*filter*/) override {
    refuse("beginAllocateToPool");
  }
  void endAllocateToPool(Device /*device*/, Pool /*pool*/) override { refuse("endAllocateToPool"); }
  void releasePool(Device /*device*/, Pool /*pool*/) override { refuse("releasePool"); }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* /*data*/) override {
    refuse("shareIpcHandle");
  }
  std::shared_ptr<void> getIpcDevPtr(std::string /*handle*/) override { refuse("getIpcDevPtr"); }
  void recordHistory(bool /*enabled*/, c10::cuda::CUDACachingAllocator::CreateContextFn /*context*/,
                     size_t /*entries*/, c10::cuda::CUDACachingAllocator::RecordContext /*when*/,
                     bool /*clear*/, const std::vector<std::string>& /*skip*/) override {
    refuse("recordHistory");
  }
  void attachOutOfMemoryObserver(
      c10::cuda::CUDACachingAllocator::OutOfMemoryObserver /*observer*/) override {
    refuse("attachOutOfMemoryObserver");
  }
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker /*tracker*/) override {
    refuse("attachAllocatorTraceTracker");
  }
  void enablePeerAccess(Device /*device*/, Device /*to*/) override { refuse("enablePeerAccess"); }
  cudaError_t memcpyAsync(void* /*to*/, int /*to_device*/, const void* /*from*/,
                          int /*from_device*/, size_t /*bytes*/, cudaStream_t /*on*/,
                          bool /*peers*/) override {
    refuse("memcpyAsync");
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(
      Device /*device*/, Pool /*pool*/) override {
    refuse("getCheckpointState");
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Device /*device*/,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> /*state*/) override {
    refuse("setCheckpointPoolState");
  }

 private:
  [[noreturn]] static void refuse(const char* what) {
    TORCH_CHECK(false, what, " of CUDA's allocator is not there on the host-backed device");
  }
};

}  // namespace host_backed
