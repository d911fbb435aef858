#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/layers/backend.h"

namespace sftrun::layers {

/// [documents, hidden] of rows [N, hidden], both fp32. The order of additions is that of the rows, also
/// on CUDA, so a document's result does not depend on the others.
at::Tensor pooled(const at::Tensor& rows, const PooledRows& pooling);
/// The gradient of the rows [N, hidden], given that of `pooled`'s result.
at::Tensor of_pooled_rows(const at::Tensor& gradient, const PooledRows& pooling);

}  // namespace sftrun::layers
