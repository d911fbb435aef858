#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"

/// Per-layer inputs of Gemma 3n and 4, computed from each token and its embedding e:
///   (norm(projection_scale * projection(e)) + table_scale * table[token]) / sqrt(2)
namespace sftrun::layers {

struct PerLayerInputs {
  Weight table;       ///< [vocab, layers * size]
  Linear projection;  ///< [layers * size, hidden]
  Norm norm;          ///< [size]
  double table_scale = 1, projection_scale = 1;

  bool defined() const { return table.defined(); }
  int64_t size() const { return norm.weight.numel(); }
};

struct PerLayerRun {
  at::Tensor embedded;         ///< [T, hidden]
  at::Tensor projected, rstd;  ///< [T * layers, size], before the norm
  LowRank low;
};

/// @param embedded [T, hidden]   @return [T, layers, size]
at::Tensor per_layer_forward(const PerLayerInputs& inputs, const at::Tensor& tokens,
                             const at::Tensor& embedded, const BatchContext& batch,
                             PerLayerRun* keep);
/// Adds to the parameters' gradients. @param d [T, layers, size]
/// @param placeholders [N] int64: rows whose entries of the table get no gradient (transformers' padding_idx); undefined: none
/// @return the gradient of `embedded`; undefined when !needs_d_embedded
at::Tensor per_layer_backward(const PerLayerInputs& inputs, PerLayerRun run,
                              const at::Tensor& tokens, const at::Tensor& d,
                              const BatchContext& batch, bool needs_d_embedded,
                              const at::Tensor& placeholders = {});

}  // namespace sftrun::layers
