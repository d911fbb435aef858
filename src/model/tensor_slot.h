#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/kernels/quant.h"
#include "sftrun/layers/parameter.h"

namespace sftrun::model {

/// Where a tensor of the model goes.
struct TensorSlot {
  std::string name;
  at::Tensor* weight;
  layers::Parameter** parameter;  ///< to null: it is frozen
  at::ScalarType dtype;
  int64_t unit;
  /// Set instead of `weight` if quantised; null: it stays dense.
  std::optional<kernels::QuantizedMatrix>* quantized = nullptr;
  /// Decoders with shared weights use the same tensor.
  bool may_be_shared = true;
};

}  // namespace sftrun::model
