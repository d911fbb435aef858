#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <string>

#include "../parallel.h"
#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"

namespace sftrun::kernels {

/// @param values fp32   @throws DataError naming the tensor if values are NaN or infinite
inline void require_finite(const at::Tensor& values, const std::string& name) {
  constexpr int64_t kGrain = 1 << 16;  // minimum number of values per thread
  const auto* from = values.const_data_ptr<float>();
  std::atomic<bool> finite = true;
  parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    if (!all_finite({from + begin, static_cast<size_t>(end - begin)})) finite = false;
  });
  if (finite) return;
  throw DataError(fmt::format("tensor `{}` has NaN or infinite values", name), {},
                  "download or copy the model again");
}

}  // namespace sftrun::kernels
