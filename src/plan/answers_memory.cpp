#include "sftrun/plan/answers_memory.h"
#include "sftrun/spec/blocks.h"

#include <algorithm>

namespace sftrun::plan {
namespace {

constexpr int64_t kFp32 = 4;

/// Keys and values of a token, in every layer.
int64_t values_of_token(const spec::ArchSpec& arch) {
  int64_t values = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    if (spec::has_state(arch, layer)) continue;
    values += 2 * spec::attention_sizes(arch, layer).keys();
  }
  return values;
}

/// The states of the delta nets, which do not grow with the tokens: fp32.
int64_t state_bytes(const spec::ArchSpec& arch) {
  int64_t nets = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    nets += spec::has_state(arch, layer) ? 1 : 0;
  const spec::DeltaNetSpec& net = arch.delta_net;
  return nets == 0 ? 0 : nets * net.num_value_heads * net.key_dim * net.value_dim * kFp32;
}

/// Inner values of a token in the feed-forward blocks of a layer: of a dense MLP, of experts, or of both.
int64_t inner_values(const spec::ArchSpec& arch, int64_t layer) {
  const bool is_sparse = arch.layers[static_cast<size_t>(layer)].sparse;
  int64_t values = is_sparse ? arch.mixture.top_k * arch.mixture.intermediate_size : 0;
  if (!is_sparse || arch.mixture.beside_dense) values += spec::intermediate_size(arch, layer);
  return values;
}

/// Values of a token while its layer is computed: queries, keys, values, gate, up and their product.
int64_t values_of_pass(const spec::ArchSpec& arch) {
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const spec::AttentionSizes sizes = spec::attention_sizes(arch, layer);
    largest =
        std::max(largest, 2 * sizes.queries() + 2 * sizes.keys() + 3 * inner_values(arch, layer));
  }
  return largest + 3 * arch.hidden_size;
}

}  // namespace

std::optional<AnswersMemory> answers_memory(const spec::ArchSpec& whole,
                                            const config::RunConfig& config,
                                            const RunDevices& devices, const MemoryPlan& plan) {
  if (!config.train.predict_with_generate) return std::nullopt;
  const spec::ArchSpec arch = device_arch(whole, config.parallel.axes);
  constexpr int64_t kPromptTokens = 4096;  // of a pass: `GenerationBatch::take_unread`
  AnswersMemory memory{.rows = config.train.generation_batch_size,
                       .tokens = config.model.max_seq_len + config.train.generation_max_new_tokens};
  memory.cache = memory.rows * (memory.tokens * values_of_token(arch) * devices.element_bytes +
                                state_bytes(arch));
  const int64_t read = std::max(config.model.max_seq_len,
                                std::min(kPromptTokens, memory.rows * config.model.max_seq_len));
  memory.pass =
      read * values_of_pass(arch) * devices.element_bytes + memory.rows * arch.vocab_size * kFp32;
  memory.gathered = (plan.held.base + plan.held.trainable) * (config.parallel.axes.dp_shard - 1);
  memory.beside = plan.held.total() - plan.held.gathered;
  memory.context = plan.context + plan.communication;
  return memory;
}

}  // namespace sftrun::plan
