#include "host_memory.h"

#include "disk_space.h"
#include "sftrun/core/error.h"
#include "sftrun/core/units.h"
#include "sftrun/observe/system.h"

namespace sftrun::engine {

uint64_t trained_host_bytes(model::Decoder& decoder, const config::TrainConfig& settings,
                            int shards, bool keeps_start) {
  const uint64_t copy =
      decoder.options().dtype == at::kFloat ? 0 : c10::elementSize(decoder.options().dtype);
  constexpr uint64_t kMasterAndGradient = 2 * sizeof(float);
  const auto values = static_cast<uint64_t>(decoder.parameters().numel());
  const bool trains_adapter = decoder.options().trains == model::Trains::kLora;
  const uint64_t start = !keeps_start ? 0 : trains_adapter || copy == 0 ? sizeof(float) : copy;
  return (values * (kMasterAndGradient + copy + start) + optimizer_state_bytes(decoder, settings)) /
         static_cast<uint64_t>(shards);
}

void require_host_memory(const HostMemory& memory) {
  if (memory.free_bytes == 0 || memory.needed_bytes <= memory.free_bytes) return;
  throw OutOfMemoryError(
      fmt::format(
          "trained weights, gradients and optimizer state take {} of this machine's memory, "
          "of which {} are free",
          format_bytes(memory.needed_bytes), format_bytes(memory.free_bytes)),
      "parallel.offload.params",
      "use parallel.strategy fsdp, which divides them over the devices; train.optimizer "
      "adamw_8bit; or tuning.mode lora");
}

void require_host_memory(Rank& rank, uint64_t own_bytes) {
  const uint64_t free = observe::memory_info().available_bytes;
  rank.comm().barrier("host-memory");  // no rank allocates before all have looked
  require_host_memory(
      {.needed_bytes = own_bytes * static_cast<uint64_t>(rank.env().local_world_size),
       .free_bytes = free});
}

}  // namespace sftrun::engine
