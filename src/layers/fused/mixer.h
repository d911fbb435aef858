#pragma once

#include <utility>
#include <vector>

#include "fused/block.h"
#include "sftrun/layers/backend.h"

namespace sftrun::layers {

/// State of the mixer's forward pass.
struct MixerRun {
  at::Tensor x, rstd;
  DeltaRun delta;                     ///< of a gated delta net, whose output is attention.out
  at::Tensor gate;                    ///< of the attention output, before its sigmoid
  at::Tensor q, k, v;                 ///< as attention reads them, or before norms and RoPE
  at::Tensor q_rstd, k_rstd, v_rstd;  ///< if they have norms
  kernels::AttentionOutput attention;
  LowRank qkv_low;
  at::Tensor joint_low;  ///< of joint linears; replaces `qkv_low`
  Joined joined;
};

/// The first block of a layer: attention or a gated delta net, with norms and residual.
class MixerBlock : public FusedBlock {
 public:
  MixerBlock(const Layer& layer, const BatchContext& batch) : FusedBlock(layer, batch) {}
  /// @param copy receives x, if defined
  AttentionInputs project(const at::Tensor& x, MixerRun* keep, const at::Tensor& copy = {});
  /// @param copy a copy of x, overwritten with the sum; or undefined
  at::Tensor add_attended(const at::Tensor& x, const at::Tensor& attended, MixerRun* keep,
                          const at::Tensor& copy = {});
  /// @param x [T, hidden]   @return [T, hidden]
  at::Tensor forward(const at::Tensor& x, MixerRun* keep);
  /// @param grad gradient of the output   @return gradient of the input; undefined when !needs_dx
  at::Tensor backward(MixerRun run, const at::Tensor& grad, bool needs_dx);
  /// Whether anything before the MLP block needs its gradient.
  bool needs_gradient() const;

 private:
  at::Tensor forward_of_delta_net(const at::Tensor& x, MixerRun* keep);
  at::Tensor backward_of_delta_net(MixerRun run, const at::Tensor& grad, bool needs_dx);
  LinearGroup qkv_group() const;
  bool borrows_keys() const { return l_.keys_of >= 0; }
  /// Own or reused keys and values.
  SharedLayerState::Keys& shared_keys() const;
  /// With gradient checkpointing the layer runs again and stores the same values; dk and dv are
  /// kept.
  void lend(const at::Tensor& k, const at::Tensor& v) const;
  int64_t query_size() const { return l_.attention.num_heads * l_.attention.head_dim; }
  int64_t key_size() const { return l_.attention.num_kv_heads * l_.attention.head_dim; }
  /// [T, heads * head_dim] as [T, heads, head_dim]
  at::Tensor by_heads(const at::Tensor& x) const;
  /// Splits q_proj's output [T, heads * 2 * head_dim] into queries and gates.
  std::pair<at::Tensor, at::Tensor> queries_and_gates(const at::Tensor& both) const;
  /// Gradient of the gated attention output -> gradients of the output and of the gate.
  static std::pair<at::Tensor, at::Tensor> through_gate(const MixerRun& run,
                                                        const at::Tensor& d_gated);
  /// Queries or keys before norm and RoPE.
  struct RawHeads {
    at::Tensor x;
    const Norm* norm;
  };
  const kernels::RopeAngles* angles() const;
  /// Whether a norm applies to each head; else to all heads of a token together, or is not present.
  bool is_of_heads(const Norm& norm) const;
  /// Applies norm and RoPE; without a norm in place.
  std::vector<kernels::HeadsOutput> read_heads(const std::vector<RawHeads>& heads) const;
  /// Recomputes q and k as attention reads them; saved ones without a norm are already in that
  /// form.
  std::vector<at::Tensor> read_again(const std::vector<RawHeads>& kept) const;
  /// Gradients of attention's inputs -> gradients of the linears' outputs.
  std::vector<at::Tensor> heads_grads(const std::vector<RawHeads>& kept,
                                      const std::vector<at::Tensor>& grads,
                                      const std::vector<at::Tensor>& rstd) const;
  /// Writes the gradients of q, k and v to columns of the joint linear's output gradient.
  void joint_attention_backward(const MixerRun& run, const at::Tensor& d_attended,
                                const std::vector<at::Tensor>& into) const;
  /// Gradients of q, k and v; only of q if keys and values are reused, whose gradients are added to
  /// the exchange.
  kernels::AttentionGrads through_attention_backward(const MixerRun& run,
                                                     const at::Tensor& d_attended) const;
};

}  // namespace sftrun::layers
