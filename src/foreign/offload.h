#pragma once

#include "reading.h"
#include "rule.h"

/// Keys that keep a part of the run's state in the host's memory. What is off leaves the
/// run its own choice. Disks (`nvme`) are refused by the fields.
namespace sftrun::foreign {

inline void set_offload(Reading& reading, const SourceKey& key, std::string_view field) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    reading.set(key, field, "cpu");
  else
    reading.set(key, field, key.value);
}
/// Frozen weights and trained ones: which of them a run has, `Reading::settle_weights_on_host` sees.
inline void set_offload_of_weights(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  reading.weights_on_host.push_back({key.name, {}, key.place});
  set_offload(reading, key, "parallel.offload.base");
  set_offload(reading, key, "parallel.offload.params");
}
/// FSDP then has parameters, gradients and optimizer state on the host. @param key is on
inline void set_offload_of_all(Reading& reading, const SourceKey& key) {
  reading.weights_on_host.push_back({key.name, {}, key.place});
  for (const char* field :
       {"parallel.offload.base", "parallel.offload.params", "parallel.offload.optimizer"})
    reading.set(key, field, "cpu");
}
/// What gradient checkpointing keeps. @param key is on
inline void set_offload_of_activations(Reading& reading, const SourceKey& key) {
  reading.set(key, "train.gradient_checkpointing", "true", /*is_firm=*/false);
  reading.set(key, "parallel.offload.activations", "cpu");
}

/// Optimizer state.
inline void set_offload_of_optimizer(Reading& reading, const SourceKey& key) {
  set_offload(reading, key, "parallel.offload.optimizer");
}
/// true, or where activations are kept.
inline void set_activations_on_host(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    set_offload_of_activations(reading, key);
  else
    set_offload(reading, key, "parallel.offload.activations");
}
/// true, or where all of FSDP's state is kept.
inline void set_all_on_host(Reading& reading, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    set_offload_of_all(reading, key);
  else
    set_offload(reading, key, "parallel.offload.base");
}

}  // namespace sftrun::foreign
