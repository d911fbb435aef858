#pragma once

#include <optional>
#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"

/// Operations of the plain backend, under autograd.
namespace sftrun::layers {

/// The tensor that products read: a trained parameter's fp32 master, cast to its compute dtype
/// under autograd, or `frozen`.
at::Tensor value_of(const Parameter* parameter, const at::Tensor& frozen);

/// Over the last dimension; x itself without a norm.
at::Tensor rms_norm(const at::Tensor& x, const Norm& norm);

/// x w^T + bias of the base weight without adapter, dense or quantised.
at::Tensor base_product(const at::Tensor& x, const Linear& linear,
                        const std::optional<at::Tensor>& bias = std::nullopt);

/// x [T, in] -> [T, out] for each linear, with biases, and adapters as in peft.
std::vector<at::Tensor> linears(const at::Tensor& x, const LinearGroup& group,
                                const BatchContext& batch);

}  // namespace sftrun::layers
