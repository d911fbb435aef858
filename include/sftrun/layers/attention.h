#pragma once

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/mixer.h"

/// Softmax attention (arXiv:1706.03762) with grouped queries (arXiv:2305.13245), rotary positions,
/// windows, sinks and gates.
namespace sftrun::layers {

class Attention final : public Mixer {
 public:
  Norm q_norm, k_norm;  ///< before RoPE: per head, or over all heads together
  Norm v_norm;          ///< per head
  Linear q, k, v, qkv;  ///< q, k and v, or the fused qkv
  JointLinears joint_qkv;
  kernels::AttentionShape shape;
  Weight sinks;  ///< [heads]: one extra softmax score per head
  /// q_proj yields a query and a gate for each head: out * sigmoid(gate).
  bool gates_output = false;
  bool value_is_key = false;  ///< v is the output of k_proj, before its norm
  int rope = 0;               ///< index in `BatchContext::ropes`; -1: none

  bool fuses_qkv() const { return !qkv.name.empty(); }
  bool borrows_keys() const { return keys_of >= 0; }
  int64_t query_size() const { return shape.num_heads * shape.head_dim; }
  int64_t key_size() const { return shape.num_kv_heads * shape.head_dim; }

  BlockMembers members() override;
  std::vector<Joinable> joints() override;
  std::unique_ptr<MixerPass> pass(const Layer& layer, const BatchContext& batch) const override;
  at::Tensor plain(const at::Tensor& x, const BatchContext& batch,
                   SharedKeys& shared) const override;
  std::unique_ptr<LayerCache> make_cache(const at::TensorOptions& options) const override;
  at::Tensor generate(const Layer& layer, const at::Tensor& x,
                      const GenerationPass& pass) const override;
  bool is_static(at::ScalarType dtype) const override {
    return kernels::attention_is_static(dtype, shape);
  }
};

}  // namespace sftrun::layers
