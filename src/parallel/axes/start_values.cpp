#include "start_values.h"

#include <ATen/ATen.h>

#include "sftrun/layers/unit.h"

namespace sftrun::parallel {

void StartValues::keep(const layers::FlatValues& flat, bool reads_masters) {
  buffers_.push_back({flat.compute, flat.compute.clone()});
  if (reads_masters && !flat.compute.is_same(flat.master))
    buffers_.push_back({flat.master, flat.master.clone()});
}

void StartValues::keep_master(const layers::Parameter& parameter) {
  // Autograd must not count a change: `variable_data` has a version counter of its own.
  const at::Tensor used = parameter.master.variable_data();
  masters_.push_back({used, used.clone()});
}

void StartValues::exchange() const {
  for (const Pair& pair : buffers_) layers::exchange_memory(pair.used, pair.kept);
  for (const Pair& pair : masters_) {
    const at::Tensor used = pair.used.clone();
    pair.used.copy_(pair.kept);
    pair.kept.copy_(used);
  }
}

uint64_t StartValues::bytes() const {
  uint64_t bytes = 0;
  for (const std::vector<Pair>* pairs : {&buffers_, &masters_})
    for (const Pair& pair : *pairs) bytes += pair.kept.nbytes();
  return bytes;
}

}  // namespace sftrun::parallel
