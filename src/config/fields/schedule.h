#pragma once

#include <fmt/format.h>

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

/// When a run evaluates, saves and logs.
namespace sftrun::config {

/// Answers that are generated during the training.
template <class Visitor>
void visit_answer_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.eval_token_accuracy, "eval_token_accuracy", any(), kAny,
        "Evaluation also computes the share of labelled tokens that are the model's most likely "
        "token. It computes the head's logits a second time.",
        "true");
  field(train.predict_with_generate, "predict_with_generate", any(), kAny,
        "At each evaluation, answer the validation prompts and score the answers by ROUGE and "
        "exact match (docs/evaluation.md).",
        "true");
  field(train.generation_max_new_tokens, "generation_max_new_tokens", between(1, kMaxTokens), kAny,
        "Maximum number of tokens of such an answer.", "64");
  field(train.generation_num_beams, "generation_num_beams", between(1, kMaxBatch), kAny,
        "Answers are greedy: 1 is the only value.", "1");
  field(train.generation_batch_size, "generation_batch_size", between(1, kMaxBatch), kAny,
        "Answers that a device generates at the same time.", "16");
  field(train.generation_max_samples, "generation_max_samples",
        between(1, kMaxCount).otherwise("all examples"), kAny,
        "Number of validation examples to answer, from the first.", "200");
  field(train.generation_time_budget, "generation_time_budget", at_least(0), kAny,
        "Maximum time for generating answers: one minute, plus this share of the training time so "
        "far. An evaluation that would need more computes only the loss. 0: no limit.",
        "0.1");
}

/// The best evaluation, and when to stop.
template <class Visitor>
void visit_best_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.load_best_model_at_end, "load_best_model_at_end", any(), kAny,
        "The result is the model of the best evaluation instead of the last step's. Each "
        "evaluation that is the best so far writes a checkpoint.",
        "true");
  field(train.metric_for_best_model, "metric_for_best_model",
        any().otherwise("eval_loss; eval_reward with rollouts"), kAny,
        "Metric that decides which evaluation is the best: eval_loss, eval_perplexity, "
        "eval_SET_loss, eval_token_accuracy, eval_rouge1, eval_rouge2, eval_rouge_l, "
        "eval_exact_match, or with " +
            joined(objective_names([](const ObjectiveInfo& info) {
                     return info.has_metric("rewards/accuracies");
                   }),
                   " or ") +
            " eval_rewards/accuracies, with kto eval_rewards/margins, with reward and classify "
            "eval_accuracy, with classify eval_f1_macro and the like.",
        "eval_rouge_l");
  field(train.greater_is_better, "greater_is_better",
        any().otherwise("false for losses and perplexity, else true"), kAny,
        "Whether larger values of metric_for_best_model are better.", "true");
  field(train.early_stopping_patience, "early_stopping_patience",
        between(1, kMaxCount).otherwise("no early stopping"), kAny,
        "Stop after this number of evaluations in a row without an improvement.", "3");
  field(train.early_stopping_threshold, "early_stopping_threshold", at_least(0), kAny,
        "Early stopping: how much better than the best an evaluation must be to be an "
        "improvement.",
        "0.01");
}

template <class Visitor>
void visit_schedule_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.eval_strategy, "eval_strategy", any(), kAny,
        "When to evaluate. auto: every eval_steps if set, else every epoch if there is validation "
        "data. steps and epoch also evaluate after the last step.",
        "steps");
  field(train.eval_steps, "eval_steps", between(1, kMaxCount).otherwise("none"), kAny,
        "Optimizer steps between evaluations.", "200");
  field(train.eval_on_start, "eval_on_start", any(), kAny, "Evaluate before the first step too.",
        "true");
  field(train.eval_batch_size, "eval_batch_size", between(1, kMaxBatch), kAny,
        "Packed sequences or examples per device in evaluation. auto: batch_size.", "8");
  visit_answer_fields(train, field);
  visit_best_fields(train, field);
  field(train.save_strategy, "save_strategy", any(), kAny,
        "Checkpoints in addition to those of save_every. steps: every save_steps, if set. epoch: "
        "after every epoch.",
        "epoch");
  field(train.save_steps, "save_steps", between(1, kMaxCount).otherwise("none"), kAny,
        "Optimizer steps between checkpoints.", "500");
  field(train.save_every, "save_every", any(), kAny,
        "Time between checkpoints, with its unit (90s, 10m, 1h30m). 0: only by save_strategy and "
        "at the "
        "end.",
        "30m");
  field(train.save_total_limit, "save_total_limit", between(1, kMaxCount).otherwise("all are kept"),
        kAny,
        "Number of checkpoints to keep; older ones are removed. The one of the best evaluation is "
        "kept, too (docs/evaluation.md).",
        "3");
  field(train.save_in_background, "save_in_background", any(), kAny,
        "Write checkpoints from a copy in host memory while training continues. auto: if the "
        "copies take at most half of the memory that is free.",
        "off");
  field(train.longest_batch_first, "longest_batch_first", any(), kAny,
        "Compute the longest micro-batch of the data before the first step, without an update, so "
        "that a run that needs too much memory fails at the start; with images also that with most "
        "of them. auto: on GPUs, and on a CPU if the estimate is more than half of the memory.",
        "off");
  field(train.checkpoint_format, "checkpoint_format", any(), kAny,
        "auto: if base weights are trained and divided over the ranks, each rank writes its part; "
        "else whole. whole: rank 0 writes whole tensors, which all ranks put together.",
        "whole");
  field(train.logging_steps, "logging_steps", between(1, kMaxCount), kAny,
        "Optimizer steps between log lines. metrics.jsonl has every step.", "10");
}

}  // namespace sftrun::config
