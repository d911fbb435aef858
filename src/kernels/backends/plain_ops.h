#pragma once

#include <optional>
#include <vector>

#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/ops.h"

/// What the plain backend's parts share, under autograd.
namespace sftrun::kernels {

/// What products read: trained parameters take part in autograd through their fp32 master.
at::Tensor value_of(const Parameter* parameter, const at::Tensor& frozen);

/// x w^T + bias of the base weight alone, dense or in fewer bits.
at::Tensor base_product(const at::Tensor& x, const Linear& linear,
                        const std::optional<at::Tensor>& bias = std::nullopt);

/// x [T, in] -> one [T, out] each, with biases and adapters as peft adds them.
std::vector<at::Tensor> linears(const at::Tensor& x, const LinearGroup& group,
                                const BatchContext& batch);

}  // namespace sftrun::kernels
