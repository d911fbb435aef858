#pragma once

#include "sftrun/kernels/cuda_registry.h"

/// The entries of `CudaKernels`. Each allocates its results and launches kernels on the current
/// stream of the device of its first operand. The engine has checked the operands (operands.h).
/// This library depends only on LibTorch and on no symbol of the engine, which is loaded with
/// RTLD_LOCAL.
namespace sftrun::kernels::plugin {

// norms.cpp
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset,
                                                   const at::Tensor& copy, int64_t spare);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset,
                             int64_t spare);
std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim);
std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
                                       const std::vector<at::Tensor>& grads,
                                       const std::vector<at::Tensor>& rstd,
                                       const RopeAngles* angles, int64_t head_dim,
                                       const std::vector<at::Tensor>& into);

// attention.cpp
std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v,
                                                    const at::Tensor& cu_seqlens,
                                                    const AttentionShape& shape);
AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                  const at::Tensor& cu_seqlens, const AttentionShape& shape);

// elements.cpp
at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare);
void gated_backward(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                    bool leaves_activation);
at::Tensor dropout(const at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                   const DropoutParams& params);
void add_embedding_noise(at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                         const at::Tensor& cu_seqlens, const NoiseParams& params);
at::Tensor cross_entropy(at::Tensor& logits, const at::Tensor& labels, double softcap,
                         const GradScale& grad_scale);
at::Tensor cross_entropy_loss(const at::Tensor& logits, const at::Tensor& labels, double softcap);

// optimizers.cpp
void adamw(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
           at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
           const at::Tensor& gate);
void adamw_8bit(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                at::Tensor& compute, int64_t first_block, int64_t end_block,
                const AdamW8bitParams& params, const at::Tensor& gate);
void decide_update(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule);
at::Tensor sum_of_squares(const at::Tensor& flat);

// formats.cpp
void dequantize(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                const at::Tensor& out);
at::Tensor thin_product(const at::Tensor& x, const QuantizedMatrix& w,
                        const cuda::FourBitTables& tables);
void turn_codes(const at::Tensor& from, const at::Tensor& to);
RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains);

// experts.cpp
at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& w, bool transposed,
                          const at::Tensor& ends);
void add_grouped_matmul_tn(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                           const at::Tensor& ends);
TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise);
at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale);
Routes sort_routes(const at::Tensor& chosen, int64_t num_experts);
at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& rows);
at::Tensor sum_rows(const RowSum& sum);
void add_expert_bias(at::Tensor& y, const at::Tensor& bias, const at::Tensor& experts);
void add_expert_sums(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                     const Routes& routes);
void add_expert_products(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends);
WeightedGatedGrads weighted_gated_backward(Gating gating, WeightedGated& gated,
                                           const Routes& routes, bool with_h);
GatedAnswerGrads gated_answer_backward(const at::Tensor& dy, const at::Tensor& answer,
                                       const at::Tensor& logits);

// adapters.cpp
void add_adapter_grads(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals);
void add_low_rank(const at::Tensor& y, const at::Tensor& low, const at::Tensor& factor,
                  const at::Tensor& base);
at::Tensor copy_table(const std::vector<MatrixCopy>& copies);
void move_table(const at::Tensor& table, int64_t from, int64_t to);
void copy_matrices(const at::Tensor& table, const at::Tensor& like);

// device.cpp
int compute_capability(at::Device device);
bool multiplies_fp8(const at::Tensor& x);
bool libtorch_groups(const at::Tensor& x);
at::Tensor pinned_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
std::string card_name(at::Device device);
std::string card_bus_id(at::Device device);

}  // namespace sftrun::kernels::plugin
