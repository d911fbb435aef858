#include "blocks/block.h"

namespace sftrun::plan::attention {
namespace {

/// Queries, keys, values and their gradients of the head that each thread works on, packed for
/// products.
int64_t packed_heads(const StepContext& step, const spec::AttentionSizes& sizes) {
  constexpr int64_t kPacked = 8;
  return step.fp32_rows(kPacked * step.shape.threads * sizes.head_dim) * step.sharing();
}

/// The gradients of q, k and v for each query head.
int64_t head_gradients(const StepContext& step, const spec::AttentionSizes& sizes) {
  const int64_t queries = sizes.queries();
  if (!step.shape.on_gpu) return step.fp32_rows(2 * queries);
  // LibTorch's flash attention sums the gradient of q in fp32 (mha_bwd in flash_api.cpp).
  const bool shares_keys = sizes.num_heads != sizes.num_kv_heads;
  return step.rows(shares_keys ? 2 * queries : 0) + step.fp32_rows(queries + sizes.num_heads);
}

/// Queries and keys that are normed again before their gradients are computed.
int64_t normed_heads(const StepContext& step, const spec::AttentionSizes& sizes) {
  if (step.arch.qk_norm == spec::QkNorm::kNone) return 0;
  return step.rows(sizes.queries() + sizes.keys());
}

/// What is there beside the gradients of q, k and v, or comes after them, on a GPU
/// (src/layers/attention/attention_pass.cpp).
int64_t beside_gradients(const StepContext& step, const spec::AttentionSizes& sizes) {
  // Joint linears: the gradients are columns of one tensor, too.
  const int64_t joint = step.joins_linears ? step.rows(sizes.queries() + 2 * sizes.keys()) : 0;
  const int64_t heads = head_gradients(step, sizes) + joint + normed_heads(step, sizes);
  // With full training the input is normed again.
  const int64_t input = step.trains_base ? step.rows(step.arch.hidden_size) : 0;
  return std::max(heads, input + norm_backward(step));
}

/// Of sequences that are shared (src/layers/attention/shared_attention.cpp): what attention read, as
/// rows beside its columns, is kept; queries, keys and values, the gradient of the output, and a message
/// on its way are there beside the gradients of q, k and v.
struct SharedBytes {
  int64_t kept = 0, in_backward = 0;
};
SharedBytes shared_bytes(const StepContext& step, const spec::AttentionSizes& sizes) {
  if (step.sharing() == 1) return {};
  const int64_t copies = std::max<int64_t>(1, step.sharing() / sizes.num_kv_heads);
  return {step.rows(sizes.queries()), step.rows(3 * sizes.queries() + 4 * copies * sizes.keys())};
}

TrainingBytes training(const StepContext& step, int64_t layer) {
  const spec::AttentionSizes sizes = spec::attention_sizes(step.arch, layer);
  const int64_t gates = step.arch.attention_gate ? sizes.queries() : 0,
                projected = step.rows(2 * sizes.queries() + 2 * sizes.keys() + gates);
  const int64_t beside =
      step.shape.on_gpu
          ? beside_gradients(step, sizes)
          : head_gradients(step, sizes) + packed_heads(step, sizes) + normed_heads(step, sizes);
  const SharedBytes shared = shared_bytes(step, sizes);
  return {.kept = projected + shared.kept + step.fp32_rows(sizes.num_heads),
          .in_backward = projected + beside + shared.in_backward};
}

/// Queries, keys and values before and after RoPE, or queries, keys, values, what they read and, with
/// gates, the gates open and what passes them. A layer that reuses keys has none of its own.
GenerationBytes generation(const StepContext& pass, int64_t layer) {
  const spec::AttentionSizes sizes = spec::attention_sizes(pass.arch, layer);
  const bool reuses_keys = pass.arch.layers[static_cast<size_t>(layer)].keys_of >= 0;
  const int64_t gates = pass.arch.attention_gate ? 2 * sizes.queries() : 0;
  return {.cache_of_token = reuses_keys ? 0 : 2 * sizes.keys() * pass.shape.element_bytes,
          .pass = pass.rows(2 * (sizes.queries() + sizes.keys()) + gates)};
}

}  // namespace

const BlockRow kRow{
    .name = "attention", .title = "attention", .training = training, .generation = generation};

}  // namespace sftrun::plan::attention
