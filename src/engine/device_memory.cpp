#include "device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "sftrun/kernels/memory.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/observe/system.h"

namespace sftrun::engine {
namespace {

using c10::CachingAllocator::Stat;

c10::CachingDeviceAllocator::DeviceStats card_stats(at::Device card) {
  return c10::getDeviceAllocator(card.type())->getDeviceStats(card.index());
}

const Stat& of_all_pools(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

uint64_t peak_memory_bytes(at::Device device) {
  return device.is_cuda()
             ? static_cast<uint64_t>(of_all_pools(card_stats(device).reserved_bytes).peak)
             : observe::process_memory().peak_resident_bytes;
}

uint64_t device_memory_bytes(at::Device device, int local_world_size) {
  if (!device.is_cuda())
    return observe::memory_info().total_bytes / static_cast<uint64_t>(local_world_size);
  uint64_t smallest = UINT64_MAX;
  for (const launch::GpuInfo& gpu : launch::query_gpus().gpus)
    smallest = std::min(smallest, gpu.memory_total_bytes.value_or(UINT64_MAX));
  return smallest == UINT64_MAX ? 0 : smallest;
}

TensorMemory tensor_memory(at::Device device) {
  if (device.is_cuda()) {
    const Stat bytes = of_all_pools(card_stats(device).allocated_bytes);
    return {static_cast<uint64_t>(bytes.current), static_cast<uint64_t>(bytes.peak)};
  }
  const kernels::MemoryStats memory = kernels::cpu_memory_stats();
  return {memory.allocated_bytes, memory.peak_bytes};
}

void reset_tensor_peak(at::Device device) {
  if (device.is_cuda())
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  else
    kernels::reset_cpu_peak();
}

}  // namespace sftrun::engine
