#include "ending.h"

#include "memory.h"
#include "report.h"
#include "streams.h"

namespace stand_in {

std::atomic<int>& open_communicators() {
  static auto* const count = new std::atomic<int>(0);  // outlives every destructor
  return *count;
}

namespace {

/// When this library is unloaded, which is after all that link it. Programs that are started with
/// it and use no device write nothing.
__attribute__((destructor)) void log_end() {
  if (!Event::any()) return;
  const auto lock = lock_tables();
  const OpenMemory memory = open_memory();
  Event("end")
      .with("device_blocks", memory.device_blocks)
      .with("device_bytes", memory.device_bytes)
      .with("pinned", memory.pinned)
      .with("registered", memory.registered)
      .with("streams", open_streams())
      .with("events", open_events())
      .with("communicators", open_communicators().load());
}

}  // namespace
}  // namespace stand_in
