#pragma once

namespace sftrun::engine {

/// `train.deterministic`: CUDA operations of this process sum in a fixed order, or fail if they have
/// none. Call it before the first product on a GPU.
void sum_in_fixed_order();

}  // namespace sftrun::engine
