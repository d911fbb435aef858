#pragma once

#include "reading.h"
#include "rule.h"

/// Rules of keys that keep a part of the run's state in the host's memory. What is off leaves the
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

constexpr ImportRule offload_optimizer(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    set_offload(reading, source, "parallel.offload.optimizer");
  });
}
constexpr ImportRule offload_weights(std::string_view key) {
  return special(key, set_offload_of_weights);
}
constexpr ImportRule offload_activations(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    if (is_off(source.value)) return;
    if (parse_bool(source.value.text) == true)
      set_offload_of_activations(reading, source);
    else
      set_offload(reading, source, "parallel.offload.activations");
  });
}
constexpr ImportRule offload_all(std::string_view key) {
  return special(key, [](Reading& reading, const SourceKey& source) {
    if (is_off(source.value)) return;
    if (parse_bool(source.value.text) == true)
      set_offload_of_all(reading, source);
    else
      set_offload(reading, source, "parallel.offload.base");
  });
}

}  // namespace sftrun::foreign
