#pragma once

#include "sftrun/layers/delta_net.h"

namespace sftrun::layers {

/// transformers' Qwen3_5GatedDeltaNet up to its out_proj, document by document and token by token
/// (modeling_qwen3_5.py, torch_recurrent_gated_delta_rule), under autograd.
/// @param x [T, hidden], after the input norm   @return [T, num_value_heads * value_dim]
at::Tensor plain_delta_net(const DeltaNet& net, const at::Tensor& x, const BatchContext& batch);

}  // namespace sftrun::layers
