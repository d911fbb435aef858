#pragma once

#include <string>

#include "sftrun/kernels/graph.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/routes.h"

/// The CUDA side of `ops.h`, filled by libsftrun_cuda.so when it is loaded (only where there is a
/// GPU). Same contracts as there.
namespace sftrun::kernels {

namespace cuda {
struct FourBitTables;
}

/// to = scale * from. Rows of `to` may lie further apart than they are long.
struct MatrixCopy {
  at::Tensor from, to;
  double scale = 1;
};

struct CudaKernels {
  std::pair<at::Tensor, at::Tensor> (*rms_norm_forward)(const at::Tensor& x,
                                                        const at::Tensor& weight, double eps,
                                                        double offset, const at::Tensor& copy,
                                                        int64_t spare);
  at::Tensor (*rms_norm_backward)(const at::Tensor& dy, const at::Tensor& x,
                                  const at::Tensor& weight, const at::Tensor& rstd,
                                  const at::Tensor& residual, double offset, int64_t spare);
  std::vector<HeadsOutput> (*heads_forward)(const std::vector<HeadsInput>& inputs,
                                            const RopeAngles* angles, int64_t head_dim);
  std::vector<at::Tensor> (*heads_backward)(const std::vector<HeadsInput>& inputs,
                                            const std::vector<at::Tensor>& grads,
                                            const std::vector<at::Tensor>& rstd,
                                            const RopeAngles* angles, int64_t head_dim,
                                            const std::vector<at::Tensor>& into);
  /// What FlashAttention does not take, of heads of at most 512 channels.
  /// @param cu_seqlens [documents + 1] int32 on the device
  /// @return out, contiguous, and lse [heads, T] fp32
  std::pair<at::Tensor, at::Tensor> (*attention_forward)(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const at::Tensor& cu_seqlens,
                                                         const AttentionShape& shape);
  /// @param d_out, out contiguous   @return contiguous gradients
  AttentionGrads (*attention_backward)(const at::Tensor& d_out, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& out, const at::Tensor& lse,
                                       const at::Tensor& cu_seqlens, const AttentionShape& shape);
  at::Tensor (*gated_forward)(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                              int64_t spare);
  /// @param leaves_activation dh becomes what `gated_forward` gave
  void (*gated_backward)(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                         bool leaves_activation);
  /// @param token_keys [T, 2] int32   @param step [1] int32, in place of `params.step`
  at::Tensor (*dropout)(const at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                        const DropoutParams& params);
  /// x [T, channels] += noise.   @param cu_seqlens [n + 1] int32
  void (*add_embedding_noise)(at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                              const at::Tensor& cu_seqlens, const NoiseParams& params);
  /// @param grad_factor [1] fp32: times `grad_scale`; undefined: 1
  at::Tensor (*cross_entropy)(at::Tensor& logits, const at::Tensor& labels, double softcap,
                              double grad_scale, const at::Tensor& grad_factor);
  at::Tensor (*cross_entropy_loss)(const at::Tensor& logits, const at::Tensor& labels,
                                   double softcap);
  void (*adamw)(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg,
                at::Tensor& exp_avg_sq, at::Tensor& compute, int64_t begin, int64_t end,
                const AdamWParams& params, const at::Tensor& gate);
  void (*adamw_8bit)(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                     at::Tensor& compute, int64_t first_block, int64_t end_block,
                     const AdamW8bitParams& params, const at::Tensor& gate);
  at::Tensor (*sum_of_squares)(const at::Tensor& flat);
  /// @param tables what the codes of 4 bits stand for: `cuda::four_bit_tables`
  /// @param out [rows, columns]
  void (*dequantize)(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                     const at::Tensor& out);
  /// x w^T of few rows: x's, as `thin_product_serves` takes them.
  at::Tensor (*thin_product)(const at::Tensor& x, const QuantizedMatrix& w,
                             const cuda::FourBitTables& tables);
  /// to [columns, rows] = from [rows, columns], uint8, with rows and columns exchanged.
  void (*turn_codes)(const at::Tensor& from, const at::Tensor& to);
  /// `round_to_e4m3` of quant.h.
  RoundedRows (*round_to_e4m3)(const at::Tensor& x, const at::Tensor& gains);
  /// Whether x's card multiplies e4m3: sm_89 and later.
  bool (*multiplies_fp8)(const at::Tensor& x);
  /// Whether LibTorch has one launch for all matrices of a product of x's type on x's card.
  bool (*libtorch_groups)(const at::Tensor& x);
  /// @param ends [experts] int32: where each expert's rows end
  at::Tensor (*grouped_matmul)(const at::Tensor& x, const at::Tensor& w, bool transposed,
                               const at::Tensor& ends);
  void (*add_grouped_matmul_tn)(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                                const at::Tensor& ends);
  // Routing and experts' rows: contracts in src/kernels/experts/device_ops.h.
  TokenChoice (*route_tokens)(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                              bool normalise);
  at::Tensor (*route_tokens_backward)(const at::Tensor& logits, const TokenChoice& choice,
                                      const at::Tensor& factors, bool normalise,
                                      const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                      double scale);
  Routes (*sort_routes)(const at::Tensor& chosen, int64_t num_experts);
  at::Tensor (*spread_rows)(const at::Tensor& x, const at::Tensor& rows);
  at::Tensor (*sum_rows)(const RowSum& sum);
  void (*add_expert_bias)(at::Tensor& y, const at::Tensor& bias, const at::Tensor& experts);
  void (*add_expert_sums)(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                          const Routes& routes);
  void (*add_expert_products)(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends);
  WeightedGatedGrads (*weighted_gated_backward)(Gating gating, WeightedGated& gated,
                                                const Routes& routes, bool with_h);
  GatedAnswerGrads (*gated_answer_backward)(const at::Tensor& dy, const at::Tensor& answer,
                                            const at::Tensor& logits);
  void (*add_adapter_grads)(const std::vector<AdapterGrad>& grads);
  /// What `copy_matrices` reads, on the device of the matrices.
  at::Tensor (*copy_table)(const std::vector<MatrixCopy>& copies);
  /// All of them in one launch.   @param like one of the matrices
  void (*copy_matrices)(const at::Tensor& table, const at::Tensor& like);
  /// On the host, in memory that cards copy from and to beside other work; of no more bytes than it
  /// has, to whole pages (LibTorch's own takes the next power of two).
  /// @param device the card that copies   @throws c10::Error where the system does not lock as much
  at::Tensor (*pinned_zeros)(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
  /// As the driver names it: "NVIDIA H100 80GB HBM3".
  std::string (*card_name)(at::Device device);
  /// Its place as NVML writes it: "00000000:81:00.0".
  std::string (*card_bus_id)(at::Device device);
  /// 10 * major + minor: 90 of an H100.
  int (*compute_capability)(at::Device device);
  void (*decide_update)(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule);
  /// `capture` of graph.h.
  std::unique_ptr<Graph> (*capture)(at::Device device, const Graph* beside,
                                    const std::function<void()>& work);
};

void register_cuda_kernels(const CudaKernels& kernels);
bool has_cuda_kernels();
/// @throws DeviceError when no CUDA kernels are loaded.
const CudaKernels& cuda_kernels();

}  // namespace sftrun::kernels
