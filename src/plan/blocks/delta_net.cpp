#include <cmath>

#include "blocks/block.h"

namespace sftrun::plan::delta_net {
namespace {

constexpr int64_t kChunk = 64;  // tokens

double heads_per_key(const spec::DeltaNetSpec& net) {
  return static_cast<double>(net.num_value_heads) / static_cast<double>(net.num_key_heads);
}

/// Heads of keys that are computed at once. A CPU's threads have one each; a GPU computes as many pairs
/// of chunk and head at once.
double heads_at_once(const StepContext& step) {
  const spec::DeltaNetSpec& net = step.arch.delta_net;
  constexpr double kPairs = 1 << 11;
  const auto sharing = static_cast<double>(step.sharing()),
             key_heads = std::max(1.0, static_cast<double>(net.num_key_heads) / sharing),
             chunks = static_cast<double>(step.shape.tokens) * sharing / kChunk;
  const double at_once = step.shape.on_gpu
                             ? std::max(1.0, std::floor(kPairs / (chunks * heads_per_key(net))))
                             : static_cast<double>(step.shape.threads);
  return std::min(key_heads, at_once);
}

/// fp32 chunks of the heads at once (src/kernels/delta_net/delta_rule.cpp).
/// @param of_key, of_value values per token, of a head of keys and of a head of values
int64_t rule_bytes(const StepContext& step, double of_key, double of_value) {
  const double values = of_key + heads_per_key(step.arch.delta_net) * of_value;
  return std::llround(static_cast<double>(kFp32 * step.shape.tokens * step.sharing()) * values *
                      heads_at_once(step));
}

/// What `RuleBackward` has at once.
int64_t rule_backward(const StepContext& step) {
  const auto keys = static_cast<double>(step.arch.delta_net.key_dim),
             values = static_cast<double>(step.arch.delta_net.value_dim);
  return rule_bytes(step, 4 * keys + 2 * kChunk,
                    2 * kChunk + 6 * keys + 4 * values + 3 * keys * values / kChunk);
}

/// What the forward pass has at once. The factors are fitted to two shapes that were measured on a CPU
/// (tests/model/block_bytes_test.cpp), not counted in the code.
int64_t rule_forward(const StepContext& step) {
  const auto keys = static_cast<double>(step.arch.delta_net.key_dim),
             values = static_cast<double>(step.arch.delta_net.value_dim);
  return rule_bytes(step, 4 * keys + 2 * kChunk,
                    2 * kChunk + 2 * keys + 3 * values + keys * values / kChunk);
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const spec::DeltaNetSpec& net = step.arch.delta_net;
  const int64_t channels = net.channels(), outputs = net.values(), heads = net.num_value_heads;
  // In the backward pass: the convolution's output, before and after SiLU, and its gradient, in fp32;
  // the normed input; gradients of the block's output and of the recurrence's, as rows and as chunks.
  // Of sequences that are shared also the channels of this device's heads, and the gradient that they get.
  const int64_t exchanged = step.sharing() > 1 ? step.rows(channels + outputs) : 0;
  return {.kept = step.rows(channels + 3 * outputs + 2 * heads),
          .in_backward = step.fp32_rows(3 * channels + 4 * heads) +
                         step.rows(step.arch.hidden_size + 3 * outputs) + rule_backward(step) +
                         exchanged};
}

/// The state is the memory and the last inputs of the convolution. In a pass: the projections, their
/// convolution in fp32, and what is read.
GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  const spec::DeltaNetSpec& net = pass.arch.delta_net;
  const int64_t memory = net.num_value_heads * net.key_dim * net.value_dim * kFp32,
                inputs = (net.conv_kernel - 1) * net.channels() * pass.shape.element_bytes;
  return {.state_of_sequence = memory + inputs,
          .pass = pass.rows(net.channels() + 2 * net.values()) + pass.fp32_rows(net.channels()) +
                  rule_forward(pass)};
}

}  // namespace

const BlockRow kRow{.name = "delta_net",
                    .title = "delta net",
                    .training = training,
                    .generation = generation,
                    .process_bytes = int64_t{8} << 20};

}  // namespace sftrun::plan::delta_net
