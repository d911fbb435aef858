#include "sftrun/plan/answers_memory.h"

#include <algorithm>

#include "layer_bytes.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

/// Caches and states of all layers, between passes.
struct CacheBytes {
  int64_t of_token = 0, of_sequence = 0;
};

CacheBytes cache_bytes(const StepContext& pass) {
  CacheBytes bytes;
  for (int64_t layer = 0; layer < pass.arch.num_layers; ++layer) {
    for (const spec::BlockTensors& block : spec::layer_blocks(pass.arch, layer)) {
      const GenerationBytes own = block_row(block.block).generation(pass, layer);
      bytes.of_token += own.cache_of_token;
      bytes.of_sequence += own.state_of_sequence;
    }
  }
  return bytes;
}

/// Tokens of prompts that a pass reads (`GenerationBatch::take_unread`).
int64_t tokens_of_pass(int64_t rows, int64_t prompt) {
  constexpr int64_t kPromptTokens = 4096;
  return std::max(prompt, std::min(kPromptTokens, rows * prompt));
}

}  // namespace

std::optional<AnswersMemory> answers_memory(const spec::ArchSpec& whole,
                                            const config::RunConfig& config,
                                            const RunDevices& devices, const MemoryPlan& plan) {
  if (!config.train.predict_with_generate) return std::nullopt;
  AnswersMemory memory{.rows = config.train.generation_batch_size,
                       .tokens = config.model.max_seq_len + config.train.generation_max_new_tokens};
  const StepContext pass(whole, config,
                         {.tokens = tokens_of_pass(memory.rows, config.model.max_seq_len),
                          .element_bytes = devices.element_bytes,
                          .on_gpu = devices.on_gpu,
                          .threads = devices.threads});
  const CacheBytes cache = cache_bytes(pass);
  memory.cache = memory.rows * (memory.tokens * cache.of_token + cache.of_sequence);
  for (int64_t layer = 0; layer < pass.arch.num_layers; ++layer)
    memory.pass = std::max(memory.pass, pass_bytes(pass, layer));
  memory.pass += memory.rows * block_row("head").generation(pass, /*layer=*/-1).pass_of_sequence;
  memory.gathered = (plan.held.base + plan.held.trainable) * (config.parallel.axes.dp_shard - 1);
  memory.beside = plan.held.total() - plan.held.gathered;
  memory.context = plan.context + plan.communication;
  return memory;
}

}  // namespace sftrun::plan
