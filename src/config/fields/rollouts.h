#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

template <class Visitor>
void visit_fields(RolloutsConfig& rollouts, Visitor&& field) {
  using enum OnResume;
  field(
      rollouts.reward, "reward", any().otherwise("none"), kSame,
      readers_of_setting("train.rollouts.reward") +
          ": what judges the answers, and with it the run writes its own: data.train has prompts. "
          "The functions are those of `sftrun reward` (docs/rewards.md).",
      "[number, {name: length, maximum: 512, unit: tokens, weight: 0.2}]");
  field(rollouts.share, "share", between(0.001, 1).otherwise("none"), kSame,
        readers_of_setting("train.rollouts.share") +
            ": with a model as train.teacher, the share of the examples of each step that get an "
            "answer that the student writes itself, in place of their last one; the teacher scores "
            "it (GKD's lambda, docs/distillation.md).",
        "0.5");
  field(rollouts.n, "n", between(2, 4096), kSame,
        "Answers to each prompt, whose rewards are compared. train.global_batch_size counts "
        "answers, and is a multiple of it.",
        "16");
  field(rollouts.num_iterations, "num_iterations", between(1, 1000), kSame,
        "Optimizer steps on each batch of answers, of which train.epochs and train.max_steps count "
        "each: GRPO's mu. Above 1, ratios are to the model that wrote the answers, which costs one "
        "more forward pass of them.",
        "2");
  field(rollouts.max_new_tokens, "max_new_tokens", between(1, kMaxTokens), kSame,
        "Maximum number of tokens of an answer. `loss_type: dr_grpo` divides by it.", "1024");
  field(rollouts.temperature, "temperature", between(0.01, 100), kSame,
        "Logits are divided by it before a token is drawn. With another value than 1 the answers "
        "are not the model's own, and with rewards train.sampling_correction corrects for it.",
        "0.9");
  field(rollouts.top_p, "top_p", between(0.01, 1), kSame,
        "Tokens are drawn from the most likely ones whose probabilities reach this sum.", "0.95");
  field(rollouts.top_k, "top_k", between(1, kMaxCount).otherwise("none"), kSame,
        "Tokens are drawn from so many of the most likely ones.", "50");
  field(rollouts.min_p, "min_p", between(0, 1), kSame,
        "Tokens are drawn from those of at least this share of the largest probability.", "0.05");
  field(
      rollouts.batch_size, "batch_size", between(1, 65536), kAny,
      "Answers that a device writes at the same time; with `engine: URL`, that a process asks for.",
      "64");
  field(rollouts.environment, "environment", any().otherwise("none"), kSame,
        "A command that answers each turn of the model, as tools do, until it says null "
        "(docs/grpo.md). Its turns are not trained on, and count in max_new_tokens.",
        "python3 tools.py");
  field(rollouts.max_turns, "max_turns", between(1, 1000), kSame,
        "The most turns of the model in a conversation with `environment`.", "8");
  field(rollouts.environment_timeout, "environment_timeout", above_up_to(0, kMaxWaitS), kAny,
        "Seconds that `environment` may take for the turns of a batch of up to 64 conversations.",
        "300");
  field(rollouts.chat, "chat", any().otherwise("true, if the model has a chat template"), kSame,
        "Whether prompts that are strings are a user's turn, and not text to continue.", "false");
  field(rollouts.num_samples, "num_samples", between(0, 4096), kAny,
        "Prompts of a logged step whose answers are kept in the run directory, in `rollouts/`.",
        "8");
  field(rollouts.engine, "engine", any(), kSame,
        "What writes the answers. self: the model that trains. A URL: a server with OpenAI's API "
        "that loads the trained adapter by its path, as vLLM and `sftrun serve` do (docs/grpo.md).",
        "http://127.0.0.1:8000/v1");
  field(rollouts.engine_model, "engine_model", any().otherwise("model.name"), kAny,
        "The name of the base model at the server of `engine`.", "base");
  field(rollouts.engine_token_variable, "engine_token_variable", any().otherwise("none"), kAny,
        "A variable of the environment with the token that the server of `engine` asks for.",
        "VLLM_API_KEY");
  field(rollouts.engine_timeout, "engine_timeout", above_up_to(0, kMaxWaitS), kAny,
        "Seconds that a request to the server of `engine` may take: one answer, or the loading of "
        "the adapter.",
        "1200");
}

}  // namespace sftrun::config
