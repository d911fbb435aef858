#pragma once

#include <cstdint>

#include "cuda/types.h"

/// A token's choices are its slots (token * top_k + k); slots sorted by expert are rows.
namespace sftrun::kernels::cuda {

/// A router's choice for each token: the top_k of its softmax over all experts.
struct RouterChoice {
  int64_t tokens, experts, top_k;
  bool normalise;   ///< the weights of a token sum to 1
  int32_t* chosen;  ///< [tokens, top_k], largest first, ties to the lower expert index
  float* weights;   ///< [tokens, top_k]
  float* scaled;    ///< [tokens, top_k]: weights times factors[expert]; null: not wanted
};
/// Computes the choice.   @param logits [tokens, experts]   @param factors [experts] or null
/// @pre top_k <= experts
void launch_route_tokens(const RouterChoice& choice, const float* logits, const float* factors,
                         Stream stream);
struct RouterGradients {
  const float* logits;         ///< [tokens, experts]
  const float* factors;        ///< [experts] or null
  const float* d_scaled;       ///< [tokens, top_k]: gradient of the scaled weights
  const float* d_probability;  ///< [experts]: gradient of every token's probabilities; null: none
  float* d_logits;             ///< [tokens, experts]: result, times `scale`
  float scale;
};
/// @param choice as computed by `launch_route_tokens`
void launch_route_tokens_backward(const RouterChoice& choice, const RouterGradients& grads,
                                  Stream stream);
/// Slots sorted by expert, stably.
struct SortedRoutes {
  int64_t routes, num_experts;  ///< routes: tokens * top_k, below 2^31
  int32_t* ends;                ///< [num_experts]: end row of each expert
  int32_t* slots;               ///< [routes]: slot of each row
  int32_t* experts;             ///< [routes]: expert of each row
  int32_t* rows;                ///< [routes]: row of each slot
};
/// @param chosen [routes], each in [0, num_experts)
void launch_sort_routes(const SortedRoutes& sorted, const int32_t* chosen, Stream stream);

}  // namespace sftrun::kernels::cuda
