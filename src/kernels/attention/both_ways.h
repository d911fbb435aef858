#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// Checks that the spans that are seen both ways are ascending, disjoint and each within one document,
/// and that the batch is not for a CUDA graph.   @throws std::logic_error
void require_spans(const BatchMetadata& batch);

}  // namespace sftrun::kernels
