#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/tower.h"

/// Operations under autograd whose parameters' gradients are added to `Parameter::grad` when the backward pass reaches them.
namespace sftrun::layers {

/// x [T, in] -> [T, out] of each linear, with bias and adapter. Kernels and rounding are those of the fused backend.
/// @param group, batch must outlive the graph
std::vector<at::Tensor> tower_linears(const at::Tensor& x, const LinearGroup& group,
                                      const BatchContext& batch);
/// The same with the linears' bounds.
std::vector<at::Tensor> tower_linears(const at::Tensor& x, const std::vector<TowerLinear>& group,
                                      const BatchContext& batch);
at::Tensor tower_linear(const at::Tensor& x, const TowerLinear& linear, const BatchContext& batch);

/// Over the last `norm.spec.size` channels of x, whose rows may have several heads; x itself without a norm.
at::Tensor tower_norm(const at::Tensor& x, const TowerNorm& norm);

/// A weight that operations read; its gradient goes to its parameter if it trains.
at::Tensor read_weight(const Weight& weight);

/// Squares of consecutive rows in another order; `rows` themselves if `order` is undefined.
/// @param rows [squares * n, …]   @param order [squares] int64: the square at each place
at::Tensor squares_in(const at::Tensor& rows, const at::Tensor& order);

/// x cos + turned(x) sin in fp32, rounded to x's dtype. In each group of `width` channels turned(x) is the second half negated, then the
/// first one.
/// @param x [T, heads, head_dim]   @param cos, sin [T, 1, head_dim] fp32
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t width);

/// softmax(q k^T * scale) v, where each row sees all rows of its document.
/// @param q, k, v [R, heads, head_dim]   @param documents each one span that is seen both ways; must outlive the graph
/// @return [R, heads * head_dim]
at::Tensor whole_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const kernels::BatchMetadata& documents, double scale);

}  // namespace sftrun::layers
