#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sftrun/kernels/routes.h"
#include "sftrun/layers/sequence_share.h"

/// The load-balancing loss of routers.
namespace sftrun::layers {

/// State of the router load-balancing loss of one batch (arXiv:2101.03961, equations 4 to 6), as in
/// transformers' load_balancing_loss_func. Over the tokens of all layers together:
///     loss = experts * sum over experts of (fraction of tokens routed to it) * (mean probability)
/// Each gradient depends on the fractions of all layers, so the forward passes count them, and the
/// gradient is known only after `close_balance`.
struct RouterBalance {
  bool counts = false;     ///< forward passes add their counts
  at::Tensor ends;         ///< [experts] int64: sum of the layers' `Routes::ends`
  at::Tensor probability;  ///< [experts] fp64: sum over tokens and layers
  int64_t rows = 0;        ///< number of tokens, summed over layers
  /// [experts] fp32: gradient of the probabilities, the same for every token; undefined: none.
  at::Tensor d_probability;
};
/// Adds one layer's choices if `counts` is set. @param probabilities [T, experts] fp32
void count_choices(RouterBalance& balance, const at::Tensor& probabilities,
                   const kernels::Routes& routes);
/// Computes the loss and stops counting (gradient checkpointing runs layers again).
/// @param share other ranks have the other tokens; null: all are counted here
/// @return the loss, unscaled; sets `d_probability` to the gradient of scale * loss
at::Tensor close_balance(RouterBalance& balance, double scale,
                         const SequenceShare* share = nullptr);

}  // namespace sftrun::layers
