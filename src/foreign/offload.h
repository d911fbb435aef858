#pragma once

#include "conversion.h"
#include "rule.h"

/// Keys that keep a part of the run's state in the host's memory. What is off leaves the
/// run its own choice. Disks (`nvme`) are refused by the fields.
namespace sftrun::foreign {

inline void set_offload(Conversion& conversion, const SourceKey& key, std::string_view field) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    conversion.set(key, field, "cpu");
  else
    conversion.set(key, field, key.value);
}
/// Frozen weights and trained ones: which of them a run has, `settle_weights_on_host` sees.
inline void set_offload_of_weights(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  conversion.weights_on_host.push_back({key.name, {}, key.place});
  set_offload(conversion, key, "parallel.offload.base");
  set_offload(conversion, key, "parallel.offload.params");
}
/// FSDP then has parameters, gradients and optimizer state on the host. @param key is on
inline void set_offload_of_all(Conversion& conversion, const SourceKey& key) {
  conversion.weights_on_host.push_back({key.name, {}, key.place});
  for (const char* field :
       {"parallel.offload.base", "parallel.offload.params", "parallel.offload.optimizer"})
    conversion.set(key, field, "cpu");
}
/// What gradient checkpointing keeps. @param key is on
inline void set_offload_of_activations(Conversion& conversion, const SourceKey& key) {
  conversion.set(key, "train.gradient_checkpointing", "true", /*is_firm=*/false);
  conversion.set(key, "parallel.offload.activations", "cpu");
}

/// Optimizer state.
inline void set_offload_of_optimizer(Conversion& conversion, const SourceKey& key) {
  set_offload(conversion, key, "parallel.offload.optimizer");
}
/// true, or where activations are kept.
inline void set_activations_on_host(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    set_offload_of_activations(conversion, key);
  else
    set_offload(conversion, key, "parallel.offload.activations");
}
/// true, or where all of FSDP's state is kept.
inline void set_all_on_host(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  if (parse_bool(key.value.text) == true)
    set_offload_of_all(conversion, key);
  else
    set_offload(conversion, key, "parallel.offload.base");
}

}  // namespace sftrun::foreign
