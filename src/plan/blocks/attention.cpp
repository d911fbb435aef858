#include "blocks/block.h"

namespace sftrun::plan::attention {
namespace {

/// Queries, keys, values and their gradients of the head that each thread works on, packed for
/// products.
int64_t packed_heads(const StepContext& step, const spec::AttentionSizes& sizes) {
  constexpr int64_t kPacked = 8;
  return step.fp32_rows(kPacked * step.shape.threads * sizes.head_dim);
}

/// The gradients of q, k and v for each query head.
int64_t head_gradients(const StepContext& step, const spec::AttentionSizes& sizes) {
  const int64_t queries = sizes.queries();
  if (!step.shape.on_gpu) return step.fp32_rows(2 * queries);
  // LibTorch's flash attention sums the gradient of q in fp32 (mha_bwd in flash_api.cpp).
  const bool shares_keys = sizes.num_heads != sizes.num_kv_heads;
  return step.rows(shares_keys ? 2 * queries : 0) + step.fp32_rows(queries + sizes.num_heads);
}

/// What is there beside the gradients of q, k and v, or comes after them, on a GPU
/// (src/layers/fused/mixer.cpp).
int64_t beside_gradients(const StepContext& step, const spec::AttentionSizes& sizes) {
  const int64_t queries = sizes.queries(), keys = sizes.keys();
  const int64_t joint = step.joins_linears ? queries + 2 * keys : 0;  // columns of one tensor
  const bool has_norms = step.arch.qk_norm != spec::QkNorm::kNone;    // normed again
  const int64_t heads =
      head_gradients(step, sizes) + step.rows(joint + (has_norms ? queries + keys : 0));
  // With full training the input is normed again.
  const int64_t input = (step.trains_base ? step.rows(step.arch.hidden_size) : 0);
  return std::max(heads, input + norm_backward(step));
}

TrainingBytes training(const StepContext& step, int64_t layer) {
  const spec::AttentionSizes sizes = spec::attention_sizes(step.arch, layer);
  const int64_t gates = step.arch.attention_gate ? sizes.queries() : 0,
                projected = 2 * sizes.queries() + 2 * sizes.keys() + gates;
  return {
      .kept = step.rows(projected) + step.fp32_rows(sizes.num_heads),
      .in_backward = step.rows(projected) +
                     (step.shape.on_gpu ? beside_gradients(step, sizes)
                                        : head_gradients(step, sizes) + packed_heads(step, sizes))};
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  const spec::AttentionSizes sizes = spec::attention_sizes(pass.arch, layer);
  return {.cache_of_token = 2 * sizes.keys() * pass.shape.element_bytes,
          .pass = pass.rows(2 * (sizes.queries() + sizes.keys()))};
}

}  // namespace

const BlockRow kRow{
    .name = "attention", .title = "attention", .training = training, .generation = generation};

}  // namespace sftrun::plan::attention
