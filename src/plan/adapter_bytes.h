#pragma once

#include "sftrun/plan/blocks.h"
#include "sftrun/spec/blocks.h"

/// Bytes of adapters and of whole matrices, from the linears of a layer.
namespace sftrun::plan {

/// Columns that the adapters of a block keep for the backward pass: their inner ones, and with DoRA the
/// outputs before the magnitude.
int64_t adapter_columns(const StepContext& step, int64_t layer, const spec::BlockTensors& block);

/// Whether a GPU has a product of several linears with a bias and without an adapter, which cuBLASLt computes.
bool has_biased_joint_alone(const StepContext& step);

/// Values of the matrices of one product, of the largest in a layer.
int64_t largest_product(const spec::ArchSpec& arch, int64_t layer);

}  // namespace sftrun::plan
