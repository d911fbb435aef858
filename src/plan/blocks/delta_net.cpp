#include <cmath>

#include "blocks/block.h"

namespace sftrun::plan::delta_net {
namespace {

/// fp32 chunks that the backward pass of the delta rule has at once (`RuleBackward` in
/// src/kernels/delta_net/delta_rule.cpp).
int64_t rule_bytes(const StepContext& step) {
  const spec::DeltaNetSpec& net = step.arch.delta_net;
  constexpr double kChunk = 64;
  const auto tokens = static_cast<double>(step.shape.tokens),
             keys = static_cast<double>(net.key_dim), values = static_cast<double>(net.value_dim),
             key_heads = static_cast<double>(net.num_key_heads),
             per_key = static_cast<double>(net.num_value_heads) / key_heads;
  const double of_key_head =  // values per token
      4 * keys + 2 * kChunk +
      per_key * (2 * kChunk + 6 * keys + 4 * values + 3 * keys * values / kChunk);
  // A CPU's threads have a key head each; a GPU computes as many pairs of chunk and head at once.
  constexpr double kPairs = 1 << 11;
  const double at_once = step.shape.on_gpu
                             ? std::max(1.0, std::floor(kPairs / (tokens / kChunk * per_key)))
                             : static_cast<double>(step.shape.threads);
  return std::llround(kFp32 * tokens * of_key_head * std::min(key_heads, at_once));
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const spec::DeltaNetSpec& net = step.arch.delta_net;
  const int64_t channels = net.channels(), outputs = net.values(), heads = net.num_value_heads;
  // In the backward pass: the convolution's output, before and after SiLU, and its gradient, in fp32;
  // the normed input; gradients of the block's output and of the recurrence's, as rows and as chunks.
  return {.kept = step.rows(channels + 3 * outputs + 2 * heads),
          .in_backward = step.fp32_rows(3 * channels + 4 * heads) +
                         step.rows(step.arch.hidden_size + 3 * outputs) + rule_bytes(step)};
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  const spec::AttentionSizes sizes = spec::attention_sizes(pass.arch, layer);
  const spec::DeltaNetSpec& net = pass.arch.delta_net;
  return {.state_of_sequence = net.num_value_heads * net.key_dim * net.value_dim * kFp32,
          .pass = pass.rows(2 * (sizes.queries() + sizes.keys()))};
}

}  // namespace

const BlockRow kRow{.name = "delta_net",
                    .title = "delta net",
                    .training = training,
                    .generation = generation,
                    .process_bytes = int64_t{8} << 20};

}  // namespace sftrun::plan::delta_net
