#pragma once

#include <cstdint>
#include <string>

#include "sftrun/layers/parameter.h"

/// The adapters of tests/data/families: their weights are not in files.
namespace sftrun::test {

/// The numbers of `hashed` in scripts/fixtures/adapters.py: [count] fp32, from -0.2 to 0.2.
inline at::Tensor hashed(const std::string& name, int64_t count, uint32_t seed) {
  uint32_t start = seed;
  for (const char c : name) start = start * 31U + static_cast<unsigned char>(c);
  at::Tensor values = at::empty({count}, at::kFloat);
  float* value = values.data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = start + static_cast<uint32_t>(i) * 2654435761U;
    bits = (bits ^ bits >> 15) * 2246822519U;
    bits = (bits ^ bits >> 13) * 3266489917U;
    value[i] = static_cast<float>(0.4 * ((bits ^ bits >> 16) / 4294967296.0 - 0.5));
  }
  return values;
}

inline void set_adapter_weights(layers::ParameterStore& store, uint32_t seed) {
  for (layers::Parameter& parameter : store.parameters()) {
    at::Tensor in_files = parameter.in_file_order(parameter.master.detach());
    in_files.copy_(hashed(parameter.name, parameter.numel, seed).view(in_files.sizes()));
  }
  store.refresh_compute();
}

}  // namespace sftrun::test
