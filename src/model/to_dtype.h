#pragma once

#include <c10/core/ScalarType.h>

#include "sftrun/core/dtype.h"
#include "sftrun/core/error.h"

namespace sftrun::model {

/// The name of a compute dtype in `weights`.
inline DType to_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    default:
      invariant_failed(__FILE__, __LINE__, "a floating-point compute dtype");
  }
}

}  // namespace sftrun::model
