#include "entries.h"
#include "graph.h"

namespace sftrun::kernels::plugin {
namespace {

constexpr CudaKernels kKernels = {
    .rms_norm_forward = rms_norm_forward,
    .rms_norm_backward = rms_norm_backward,
    .heads_forward = heads_forward,
    .heads_backward = heads_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gated_forward = gated_forward,
    .gated_backward = gated_backward,
    .dropout = dropout,
    .add_embedding_noise = add_embedding_noise,
    .cross_entropy = cross_entropy,
    .cross_entropy_loss = cross_entropy_loss,
    .adamw = adamw,
    .adamw_8bit = adamw_8bit,
    .sum_of_squares = sum_of_squares,
    .dequantize = dequantize,
    .thin_product = thin_product,
    .turn_codes = turn_codes,
    .round_to_e4m3 = round_to_e4m3,
    .multiplies_fp8 = multiplies_fp8,
    .libtorch_groups = libtorch_groups,
    .grouped_matmul = grouped_matmul,
    .add_grouped_matmul_tn = add_grouped_matmul_tn,
    .route_tokens = route_tokens,
    .route_tokens_backward = route_tokens_backward,
    .sort_routes = sort_routes,
    .spread_rows = spread_rows,
    .sum_rows = sum_rows,
    .add_expert_bias = add_expert_bias,
    .add_expert_sums = add_expert_sums,
    .add_expert_products = add_expert_products,
    .weighted_gated_backward = weighted_gated_backward,
    .gated_answer_backward = gated_answer_backward,
    .add_adapter_grads = add_adapter_grads,
    .add_low_rank = add_low_rank,
    .copy_table = copy_table,
    .move_table = move_table,
    .copy_matrices = copy_matrices,
    .pinned_zeros = pinned_zeros,
    .card_name = card_name,
    .card_bus_id = card_bus_id,
    .compute_capability = compute_capability,
    .decide_update = decide_update,
    .capture = capture_graph,
};

}  // namespace
}  // namespace sftrun::kernels::plugin

extern "C" const sftrun::kernels::CudaKernels* sftrun_cuda_kernels() {
  return &sftrun::kernels::plugin::kKernels;
}

/// Size of the table above; differs between builds, which the engine checks.
extern "C" size_t sftrun_cuda_kernels_size() {
  return sizeof(sftrun::kernels::CudaKernels);
}

/// CMake's CUDA_ARCHITECTURES of this build.
extern "C" const char* sftrun_cuda_architectures() {
  return SFTRUN_CUDA_ARCHITECTURES;
}
