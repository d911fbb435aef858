#pragma once

#include <vector>

#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/ops.h"

/// What the plain backend's parts share, under autograd.
namespace sftrun::kernels {

/// What products read: trained parameters take part in autograd through their fp32 master.
at::Tensor value_of(const Parameter* parameter, const at::Tensor& frozen);

/// x [T, in] -> one [T, out] each, with biases and adapters as peft adds them.
std::vector<at::Tensor> linears(const at::Tensor& x, const LinearGroup& group,
                                const BatchContext& batch);

}  // namespace sftrun::kernels
