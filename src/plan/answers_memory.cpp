#include "sftrun/plan/answers_memory.h"

#include <algorithm>

#include "layer_bytes.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

/// Of a process on a CPU: the code of generation, and texts. As measured with models of 20 to 75 MB.
constexpr int64_t kProcessBytes = int64_t{14} << 20;

/// Caches and states of layers [first, end), between passes.
struct CacheBytes {
  int64_t of_token = 0, of_sequence = 0;
};

CacheBytes cache_bytes(const StepContext& pass, int64_t first, int64_t end) {
  CacheBytes bytes;
  for (int64_t layer = first; layer < end; ++layer) {
    for (const spec::BlockTensors& block : spec::layer_blocks(pass.arch, layer)) {
      const GenerationBytes own = block_row(block.block).generation(pass, layer);
      bytes.of_token += own.cache_of_token;
      bytes.of_sequence += own.state_of_sequence;
    }
  }
  return bytes;
}

/// Tokens of prompts that a pass reads (`model::BatchSequences::admit`): a model with states reads one
/// prompt, and then a token of each row.
int64_t tokens_of_pass(int64_t rows, int64_t prompt, bool has_states) {
  constexpr int64_t kPromptTokens = 4096;
  if (has_states) return std::max(prompt, rows);
  return std::max(prompt, std::min(kPromptTokens, rows * prompt));
}

/// Hidden states of so many tokens, and logits of `rows`.
int64_t bytes_of_pass(const spec::ArchSpec& arch, int64_t tokens, int64_t rows,
                      int64_t element_bytes) {
  const config::RunConfig no_run;
  const StepContext pass(arch, no_run, {.tokens = tokens, .element_bytes = element_bytes});
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    largest = std::max(largest, pass_bytes(pass, layer));
  return largest + rows * block_row("head").generation(pass, /*layer=*/-1).pass_of_sequence;
}

SequencesMemory answers_of_evaluations(const config::RunConfig& config, const RunDevices& devices) {
  return {.rows = config.train.generation_batch_size,
          .tokens = config.model.max_seq_len + config.train.generation_max_new_tokens,
          .prompt_tokens = config.model.max_seq_len,
          .element_bytes = devices.element_bytes};
}

/// Where the data are known a bin is the longest prompt with the longest answer.
SequencesMemory rollouts(const config::RunConfig& config, const RunDevices& devices) {
  const config::RolloutsConfig& asked = config.train.rollouts;
  const int64_t of_device = config.train.global_batch_size.value.value_or(asked.batch_size) /
                            std::max<int64_t>(1, config.parallel.axes.data_parts());
  const int64_t tokens = devices.tokens_of_bin > 0 ? static_cast<int64_t>(devices.tokens_of_bin)
                                                   : config.model.max_seq_len;
  return {.rows = std::clamp<int64_t>(of_device, 1, asked.batch_size),
          .tokens = tokens,
          .prompt_tokens = std::max<int64_t>(1, tokens - asked.max_new_tokens),
          .refills = of_device > asked.batch_size,
          .element_bytes = devices.element_bytes};
}

}  // namespace

int64_t SequencesMemory::cache(const spec::ArchSpec& arch, int64_t first, int64_t end) const {
  if (!keeps) return 0;
  const config::RunConfig no_run;
  const StepContext pass(arch, no_run, {.element_bytes = element_bytes});
  const CacheBytes bytes = cache_bytes(pass, first, end);
  return rows * (tokens * bytes.of_token + bytes.of_sequence);
}

int64_t SequencesMemory::pass(const spec::ArchSpec& arch) const {
  const config::RunConfig no_run;
  const CacheBytes bytes =
      cache_bytes(StepContext(arch, no_run, {.element_bytes = element_bytes}), 0, arch.num_layers);
  const int64_t reading = bytes_of_pass(
      arch, tokens_of_pass(rows, prompt_tokens, bytes.of_sequence > 0), rows, element_bytes);
  if (refills || !keeps) return reading;
  // Every prompt is read before the caches have grown.
  const int64_t not_grown = rows * (tokens - prompt_tokens) * bytes.of_token;
  return std::max(bytes_of_pass(arch, rows, rows, element_bytes), reading - not_grown);
}

std::optional<AnswersMemory> answers_memory(const spec::ArchSpec& whole,
                                            const config::RunConfig& config,
                                            const RunDevices& devices, const MemoryPlan& plan) {
  const config::TrainConfig& train = config.train;
  if (!train.generates()) return std::nullopt;
  const spec::ArchSpec arch = device_arch(whole, config.parallel.axes);
  const SequencesMemory answers =
      train.writes_answers() ? rollouts(config, devices) : answers_of_evaluations(config, devices);
  AnswersMemory memory{
      .setting = train.writes_answers() ? "train.rollouts" : "train.predict_with_generate",
      .rows = answers.rows,
      .tokens = answers.tokens,
      .cache = answers.cache(arch, 0, arch.num_layers),
      .pass = answers.pass(arch)};
  if (config.parallel.axes.shards_weights())
    memory.gathered = (plan.held.base + plan.held.trainable) * config.parallel.axes.dp_shard;
  memory.beside = plan.held.total() - plan.held.gathered;
  memory.context = plan.context + plan.communication + (devices.on_gpu ? 0 : kProcessBytes);
  return memory;
}

}  // namespace sftrun::plan
