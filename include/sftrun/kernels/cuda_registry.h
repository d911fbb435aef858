#pragma once

#include <string>

#include "sftrun/kernels/graph.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/routes.h"

/// The CUDA implementations of `ops.h`, registered by libsftrun_cuda.so when it is loaded (only on
/// machines with a GPU). Contracts are those of ops.h unless noted.
namespace sftrun::kernels {

namespace cuda {
struct FourBitTables;
}

/// to = scale * from. The row stride of `to` may exceed its row length.
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
  /// Attention for inputs that FlashAttention does not support; head_dim at most 512.
  /// @param cu_seqlens [documents + 1] int32 on the device
  /// @return out (contiguous) and lse [heads, T] fp32
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
  /// @param leaves_activation dh is overwritten with the output of `gated_forward`
  void (*gated_backward)(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                         bool leaves_activation);
  /// @param token_keys [T, 2] int32   @param step [1] int32, replaces `params.step`
  at::Tensor (*dropout)(const at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                        const DropoutParams& params);
  /// x [T, channels] += noise.   @param cu_seqlens [n + 1] int32
  void (*add_embedding_noise)(at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                              const at::Tensor& cu_seqlens, const NoiseParams& params);
  at::Tensor (*cross_entropy)(at::Tensor& logits, const at::Tensor& labels, double softcap,
                              const GradScale& grad_scale);
  at::Tensor (*cross_entropy_loss)(const at::Tensor& logits, const at::Tensor& labels,
                                   double softcap);
  void (*adamw)(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg,
                at::Tensor& exp_avg_sq, at::Tensor& compute, int64_t begin, int64_t end,
                const AdamWParams& params, const at::Tensor& gate);
  void (*adamw_8bit)(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                     at::Tensor& compute, int64_t first_block, int64_t end_block,
                     const AdamW8bitParams& params, const at::Tensor& gate);
  at::Tensor (*sum_of_squares)(const at::Tensor& flat);
  /// @param tables values of the 4-bit codes (`cuda::four_bit_tables`)
  /// @param out [rows, columns]
  void (*dequantize)(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                     const at::Tensor& out);
  /// x w^T for an x of few rows.   @pre thin_product_serves
  at::Tensor (*thin_product)(const at::Tensor& x, const QuantizedMatrix& w,
                             const cuda::FourBitTables& tables);
  /// to [columns, rows] uint8 = transpose of from [rows, columns].
  void (*turn_codes)(const at::Tensor& from, const at::Tensor& to);
  /// See `round_to_e4m3` in quant.h.
  RoundedRows (*round_to_e4m3)(const at::Tensor& x, const at::Tensor& gains);
  /// Whether the GPU of x supports e4m3 matrix products (sm_89 and later).
  bool (*multiplies_fp8)(const at::Tensor& x);
  /// Whether LibTorch computes a grouped product of x's dtype in one launch on x's GPU.
  bool (*libtorch_groups)(const at::Tensor& x);
  /// @param ends [experts] int32: end row of each expert
  at::Tensor (*grouped_matmul)(const at::Tensor& x, const at::Tensor& w, bool transposed,
                               const at::Tensor& ends);
  void (*add_grouped_matmul_tn)(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                                const at::Tensor& ends);
  // Routing and rows of experts: contracts in sftrun/kernels/expert_ops.h.
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
  void (*add_adapter_grads)(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals);
  /// See add_low_rank_ in ops.h.
  void (*add_low_rank)(const at::Tensor& y, const at::Tensor& low, const at::Tensor& factor,
                       const at::Tensor& base);
  /// The device table of pointers and sizes that `copy_matrices` reads.
  at::Tensor (*copy_table)(const std::vector<MatrixCopy>& copies);
  /// Changes the addresses in the table: all matrices have moved.   @param from, to by so many bytes
  void (*move_table)(const at::Tensor& table, int64_t from, int64_t to);
  /// Performs all copies in one launch.   @param like one of the matrices
  void (*copy_matrices)(const at::Tensor& table, const at::Tensor& like);
  /// Zeros in page-locked host memory, for asynchronous copies. Its size is rounded up to whole
  /// pages (LibTorch's own allocator rounds up to the next power of two).
  /// @param device the GPU that copies
  /// @throws c10::Error if the system cannot lock that much memory
  at::Tensor (*pinned_zeros)(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);
  /// GPU name as the driver reports it: "NVIDIA H100 80GB HBM3".
  std::string (*card_name)(at::Device device);
  /// PCI bus ID in NVML's form: "00000000:81:00.0".
  std::string (*card_bus_id)(at::Device device);
  /// 10 * major + minor: 90 for an H100.
  int (*compute_capability)(at::Device device);
  void (*decide_update)(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule);
  /// See `capture` in graph.h.
  std::unique_ptr<Graph> (*capture)(at::Device device, const Graph* beside,
                                    const std::function<void()>& work);
};

void register_cuda_kernels(const CudaKernels& kernels);
bool has_cuda_kernels();
/// @throws DeviceError when no CUDA kernels are loaded.
const CudaKernels& cuda_kernels();

}  // namespace sftrun::kernels
