#pragma once

#include <vector>

#include "sftrun/weights/checkpoint.h"

namespace sftrun::test {

inline std::vector<float> read_f32(const weights::Checkpoint& checkpoint,
                                   const weights::TensorInfo& info) {
  std::vector<float> values(static_cast<size_t>(info.numel()));
  checkpoint.read(info.name, DType::kF32, values.data());
  return values;
}

}  // namespace sftrun::test
