// A card as LibTorch asks for one, beside its operators: memory, current device and streams,
// events, hooks. And what libc10_cuda.so and libtorch_cuda.so define that libsftrun_cuda.so refers
// to. Everything is synchronous.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "caching_allocator.h"
#include "capture.h"
#include "memory.h"

namespace host_backed {
namespace {

constexpr size_t kMaxDevices = 16;
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};  // 0: the default one
std::atomic<c10::StreamId> next_stream{1};

c10::DeviceIndex checked(c10::DeviceIndex index) {
  if (index < 0) index = current_device;
  TORCH_CHECK(index < device_count(), "CUDA error: invalid device ordinal ", int(index));
  return index;
}
c10::StreamId& current_stream(c10::DeviceIndex index) {
  return current_streams[static_cast<size_t>(checked(index))];
}
c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, checked(index)), id);
}

/// The current device while a block is made; blocks know theirs.
class CardAllocator final : public PartOfCachingAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = host_backed::allocate(bytes, current_device);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr || bytes == 0,
                     "CUDA out of memory. Tried to allocate ", bytes, " bytes. GPU ",
                     int(current_device));
    add_block(current_stream(current_device), data);
    return {data, data, &release, c10::Device(c10::kCUDA, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    refuse_on_captured(current_stream(current_device), "a copy of a storage");
    std::memcpy(host_view(to), host_view(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryUse use = memory_use(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      (*stat)[kAll].current = use.live_bytes;
      (*stat)[kAll].peak = use.peak_bytes;
    }
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex /*device*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "getMemoryInfo of the host-backed device");
  }
};
CardAllocator card_allocator;
const bool is_allocator_set = (c10::SetAllocator(c10::kCUDA, &card_allocator), true);

/// Page-locked host memory.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_pinned, c10::kCPU};
    constexpr size_t kPage = 4096;
    void* data = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    register_host(data, bytes, current_device);
    return {data, data, &release_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release_pinned(void* data) {
    if (data == nullptr) return;
    unregister_host(data);
    std::free(data);
  }
};
PinnedAllocator pinned_allocator;

/// cudaStreamSynchronize: of the default stream, for all others too.
void wait_for_stream(c10::StreamId stream, const char* what) {
  refuse_on_captured(stream, what);
  if (stream == 0) refuse_in_capture(what);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(c10::kCUDA, current_device);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override { current_device = checked(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device.index(), current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_urgent*/) const override {
    return stream(device.index(), next_stream++);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream(device.index(), next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    current_stream(to.device_index()) = to.id();
    return before;
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex device,
              c10::EventFlag /*flag*/) const override {
    TORCH_CHECK(device == -1 || device == on.device_index(),
                "an event of another card is recorded");
    if (*event == nullptr) *event = new Event;
    record_event(*static_cast<Event*>(*event), on.id());
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event != nullptr) wait_for_event(*static_cast<Event*>(event), on.id());
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) refuse_captured_event(*static_cast<Event*>(event), "cudaEventQuery");
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr)
      refuse_captured_event(*static_cast<Event*>(event), "cudaEventSynchronize");
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  bool queryStream(const c10::Stream& of) const override {
    refuse_on_captured(of.id(), "cudaStreamQuery");
    return true;
  }
  void synchronizeStream(const c10::Stream& of) const override {
    wait_for_stream(of.id(), "cudaStreamSynchronize");
  }
  void synchronizeDevice(c10::DeviceIndex /*device*/) const override {
    refuse_in_capture("cudaDeviceSynchronize");
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    const auto at = [](void* event) {
      refuse_captured_event(*static_cast<Event*>(event), "cudaEventElapsedTime");
      return static_cast<Event*>(event)->time;
    };
    return std::chrono::duration<double, std::milli>(at(to) - at(from)).count();
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

c10::StreamId current_stream_id(c10::DeviceIndex device) {
  return current_stream(device);
}

}  // namespace host_backed

// LibTorch's registry makes it by this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  /// LibTorch's allocator reads its settings when CUDA is first used.
  void init() const override {
    const char* setting = std::getenv("PYTORCH_ALLOC_CONF");
    if (setting == nullptr || std::strstr(setting, "expandable_segments:True") == nullptr)
      host_backed::fail("the allocator was not asked for expandable segments");
  }
  bool isBuilt() const override { return true; }
  bool hasCuDNN() const override { return true; }
  long versionRuntimeCuDNN() const override { return 91900; }
  bool isAvailable() const override { return true; }
  bool isPinnedPtr(const void* address) const override {
    return host_backed::is_registered(address);
  }
  bool hasCUDA() const override { return host_backed::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(host_backed::device_count());
  }
  int getNumGPUs() const override { return host_backed::device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return host_backed::current_device; }
  c10::DeviceIndex current_device() const override { return host_backed::current_device; }
  c10::Device getDeviceFromPtr(void* /*data*/) const override {
    return {c10::kCUDA, host_backed::current_device};
  }
  c10::Allocator* getCUDADeviceAllocator() const override { return &host_backed::card_allocator; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &host_backed::pinned_allocator;
  }
  void deviceSynchronize(c10::DeviceIndex /*device*/) const override {
    host_backed::refuse_in_capture("cudaDeviceSynchronize");
  }
};
using at::CUDAHooksArgs;
using at::CUDAHooksInterface;
using at::CUDAHooksRegistry;
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

/// Of an inline function in LibTorch's headers that CardAllocator overrides.
extern "C" __attribute__((visibility("hidden"))) cudaError_t cudaMemGetInfo(size_t* /*free*/,
                                                                            size_t* /*total*/) {
  return cudaErrorNotSupported;
}

namespace c10::cuda {

using host_backed::current_stream;

DeviceIndex device_count() noexcept {
  return static_cast<DeviceIndex>(host_backed::device_count());
}
cudaError_t GetDevice(DeviceIndex* index) {
  *index = host_backed::current_device;
  return cudaSuccess;
}
cudaError_t SetDevice(DeviceIndex index, bool /*force*/) {
  host_backed::current_device = host_backed::checked(index);
  return cudaSuccess;
}
cudaError_t MaybeSetDevice(DeviceIndex index) {
  return SetDevice(index, false);
}
DeviceIndex ExchangeDevice(DeviceIndex index) {
  const DeviceIndex before = host_backed::current_device;
  SetDevice(index, false);
  return before;
}
DeviceIndex MaybeExchangeDevice(DeviceIndex index) {
  return ExchangeDevice(index);
}
void c10_cuda_check_implementation(int32_t error, const char* file, const char* /*function*/,
                                   uint32_t line, bool /*include_stack_trace*/) {
  TORCH_CHECK(error == 0, "CUDA error ", error, " at ", file, ":", line);
}
cudaStream_t CUDAStream::stream() const {
  return reinterpret_cast<cudaStream_t>(id());
}
bool CUDAStream::query() const {
  host_backed::refuse_on_captured(id(), "cudaStreamQuery");
  return true;
}
void CUDAStream::synchronize() const {
  host_backed::wait_for_stream(id(), "cudaStreamSynchronize");
}
CUDAStream getCurrentCUDAStream(DeviceIndex index) {
  return CUDAStream(host_backed::stream(index, current_stream(index)));
}
CUDAStream getDefaultCUDAStream(DeviceIndex index) {
  return CUDAStream(host_backed::stream(index, 0));
}
CUDAStream getStreamFromPool(bool /*is_urgent*/, DeviceIndex index) {
  return CUDAStream(host_backed::stream(index, host_backed::next_stream++));
}
CUDAStream getStreamFromPool(int /*priority*/, DeviceIndex index) {
  return getStreamFromPool(false, index);
}
void setCurrentCUDAStream(CUDAStream to) {
  current_stream(to.device_index()) = to.id();
}

namespace CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{&host_backed::card_allocator};
}

}  // namespace c10::cuda

namespace at::cuda {

cudaDeviceProp* getDeviceProperties(c10::DeviceIndex /*device*/) {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp of{};
    std::strcpy(of.name, "host-backed device");
    of.major = host_backed::compute_capability() / 10;
    of.minor = host_backed::compute_capability() % 10;
    of.multiProcessorCount = 4;
    return of;
  }();
  return &properties;
}

}  // namespace at::cuda

// For the library with the emulated kernels.
extern "C" void host_backed_open_memory() {
  host_backed::open_memory();
}
extern "C" void host_backed_close_memory() {
  host_backed::close_memory();
}
extern "C" void host_backed_register_host(const void* begin, size_t bytes) {
  host_backed::register_host(begin, bytes, host_backed::current_device);
}
extern "C" bool host_backed_unregister_host(const void* begin) {
  return host_backed::unregister_host(begin);
}
