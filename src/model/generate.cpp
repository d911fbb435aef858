#include "sftrun/model/generate.h"

#include <memory>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/model/generation_batch.h"

namespace sftrun::model {
namespace {

BatchHooks batch_hooks(const GenerationHooks& hooks) {
  BatchHooks of_batch{.on_finished = hooks.on_finished};
  if (hooks.on_token) {
    of_batch.on_token = [&hooks](size_t index, NewToken&& token) {
      return token.is_stop || hooks.on_token(index, token.token);
    };
  }
  return of_batch;
}

}  // namespace

namespace {

/// Gives the batch prompts and makes its steps, until all are answered or a stop is wanted.
void lead(GenerationBatch& batch, const SamplingOptions& options, const GenerationHooks& hooks) {
  constexpr size_t kMaxTokens = 4096;  // of prompts that are taken before they are read
  const auto shared = std::make_shared<const SamplingOptions>(options);
  std::optional<size_t> num_logprobs;
  if (options.keeps_logprobs) num_logprobs = 0;
  bool is_exhausted = false;
  const auto fill = [&] {
    std::vector<SequenceRequest> taken;
    for (size_t tokens = 0; taken.size() < batch.num_free() && tokens < kMaxTokens;) {
      std::optional<Prompt> prompt = hooks.next_prompt();
      is_exhausted = !prompt;
      if (is_exhausted) break;
      tokens += prompt->tokens.size();
      std::shared_ptr<const SamplingOptions> of_prompt = shared;
      if (prompt->max_new_tokens) {
        auto own = std::make_shared<SamplingOptions>(options);
        own->max_new_tokens = *prompt->max_new_tokens;
        of_prompt = std::move(own);
      }
      taken.push_back({std::move(*prompt), std::move(of_prompt), num_logprobs});
    }
    batch.add(std::move(taken));
  };
  for (;;) {
    if (!is_exhausted) fill();
    if (batch.num_active() == 0) return;
    if (hooks.before_step && !hooks.before_step(batch.num_active())) return;
    batch.step();
  }
}

}  // namespace

void generate(Decoder& decoder, const SamplingOptions& options, size_t batch_size,
              const GenerationHooks& hooks, layers::CopyRanks* ranks) {
  GenerationBatch batch(decoder, batch_size, batch_hooks(hooks), ranks);
  if (ranks == nullptr || ranks->leads()) {
    lead(batch, options, hooks);
    batch.finish();
  } else {
    GenerationBatch::follow({&batch}, [&] {
      if (hooks.before_step) hooks.before_step(batch.num_active());
    });
  }
}

std::vector<Generation> generate(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts,
                                 const std::vector<uint64_t>& streams,
                                 const SamplingOptions& options, const OnToken& on_token) {
  SFTRUN_CHECK_EQ(prompts.size(), streams.size());
  if (prompts.empty()) return {};
  std::vector<Generation> results(prompts.size());
  size_t taken = 0;
  generate(decoder, options, prompts.size(),
           {.next_prompt = [&]() -> std::optional<Prompt> {
              if (taken == prompts.size()) return std::nullopt;
              const size_t index = taken++;
              return Prompt{index, prompts[index], streams[index]};
            },
            .on_finished = [&](size_t index,
                               Generation&& result) { results[index] = std::move(result); },
            .on_token = on_token});
  return results;
}

}  // namespace sftrun::model
