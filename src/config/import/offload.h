#pragma once

#include "import/reading.h"
#include "import/rule.h"

/// Rules of keys that keep a part of the run's state in the host's memory. What is off leaves the
/// run its own choice. Disks (`nvme`) are refused by the fields.
namespace sftrun::config::importing {

inline void set_offload(Reading& reading, const SourceKey& key, std::string_view field) {
  if (!is_off(key.value)) reading.set(key, field, key.value);
}

constexpr ImportRule offload_optimizer(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    set_offload(reading, source, "parallel.offload.optimizer");
  });
}
/// Frozen weights: trained ones stay on the device.
constexpr ImportRule offload_weights(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    set_offload(reading, source, "parallel.offload.base");
  });
}
constexpr ImportRule offload_activations(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    if (is_off(source.value)) return;
    reading.set_default("train.gradient_checkpointing", "true");
    set_offload(reading, source, "parallel.offload.activations");
  });
}
/// FSDP then has parameters, gradients and optimizer state on the host.
constexpr ImportRule offload_all(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    set_offload(reading, source, "parallel.offload.base");
    set_offload(reading, source, "parallel.offload.optimizer");
  });
}

}  // namespace sftrun::config::importing
