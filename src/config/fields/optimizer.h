#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "fields/limits.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

/// "2e-4"
inline std::string scientific(double value) {
  const double exponent = std::floor(std::log10(value));
  return fmt::format("{:.6g}e{:.0f}", value / std::pow(10, exponent), exponent);
}

inline std::vector<std::string> optimizers_that_read(std::string_view setting) {
  return optimizer_names([&](const OptimizerInfo& info) { return info.reads(setting); });
}

/// "sgd: 0, muon: 0.95"   @param value the default of the setting
template <class Value>
std::string optimizer_defaults(std::string_view setting, Value OptimizerInfo::*value) {
  std::vector<std::string> defaults;
  for (const OptimizerInfo& info : kOptimizers)
    if (info.reads(setting)) defaults.push_back(fmt::format("{}: {}", info.name, info.*value));
  return join(defaults, ", ");
}

template <class Visitor>
void visit_optimizer_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.learning_rate, "learning_rate",
        between(0, 1).otherwise(fmt::format("{} for lora and qlora, {} for full and partial",
                                            scientific(kLoraLearningRate),
                                            scientific(kFullLearningRate))),
        kSame, "Peak learning rate, reached when warm-up ends.", "1e-4");
  field(
      train.part_learning_rates, "part_learning_rates",
      between(0, 1).otherwise("learning_rate for every part"), kSame,
      "Models with images: peak learning rates of projector and vision, if tuning.train_parts has "
      "them. Warm-up, schedule and loraplus_lr_ratio scale them as learning_rate, which is the "
      "language part's.",
      "{vision: 2e-6, projector: 1e-4}");
  field(train.scheduler, "scheduler", any(), kSame, "Learning-rate schedule after the warm-up.",
        "cosine");
  field(train.warmup_ratio, "warmup_ratio",
        between(0, 1).otherwise(fmt::format("{} without warmup_steps", kWarmupRatio)), kSame,
        "Share of all steps with linear warm-up.", "0.1");
  field(train.warmup_steps, "warmup_steps", between(0, kMaxCount).otherwise("from warmup_ratio"),
        kSame, "Optimizer steps with linear warm-up.", "20");
  field(train.warmup_from, "warmup_from",
        any().otherwise("zero if warmup_ratio or warmup_steps is set, else first_step"), kSame,
        "Learning rate of the first warm-up step. zero: 0, as in transformers, so that the first "
        "step does not change the weights. first_step: 1/n of the learning rate with n warm-up "
        "steps.",
        "first_step");
  field(train.optimizer, "optimizer", any(), kSame,
        "Optimizer. docs/optimizers.md compares the size of their states and their references.",
        "adamw_8bit");
  field(train.adam_beta1, "adam_beta1", from_until(0, 1), kSame,
        "Decay of the first moment (adamw, lion).", "0.9");
  field(train.adam_beta2, "adam_beta2", from_until(0, 1), kSame,
        "Decay of the second moment; also Lion's beta2.", "0.95");
  field(train.adam_epsilon, "adam_epsilon", above_up_to(0, kMaxFactor), kSame,
        "Added to the denominator of the update (adamw).", "1e-6");
  field(train.weight_decay, "weight_decay", at_least(0), kSame,
        "Weight decay, decoupled from the gradient (sgd: added to the gradient).", "0.01");
  field(train.momentum, "momentum",
        from_until(0, 1).otherwise(optimizer_defaults("momentum", &OptimizerInfo::momentum)), kSame,
        fmt::format("Momentum of {}.", joined(optimizers_that_read("momentum"), " and ")), "0.9");
  field(train.nesterov, "nesterov",
        any().otherwise(optimizer_defaults("nesterov", &OptimizerInfo::nesterov)), kSame,
        fmt::format("Nesterov momentum of {}.", joined(optimizers_that_read("nesterov"), " and ")),
        "true");
  field(train.muon_lr, "muon_lr", any(), kSame,
        "muon's factor of the learning rate of a matrix. match_rms_adamw: 0.2 sqrt(max(rows, "
        "columns)), so that learning rates for AdamW fit. original: sqrt(max(1, rows / columns)).",
        "original");
  field(train.loraplus_lr_ratio, "loraplus_lr_ratio", above_up_to(0, kMaxFactor).otherwise("1"),
        kSame,
        "LoRA+: the learning rate of LoRA's B, and of tensors with one dimension, is this multiple "
        "of learning_rate.",
        "16");
  field(train.neftune_noise_alpha, "neftune_noise_alpha",
        above_up_to(0, kMaxFactor).otherwise("no noise"), kSame,
        "NEFTune: during training, embeddings get uniform noise of up to alpha / sqrt(tokens of "
        "the document * hidden size).",
        "5");
  field(train.max_grad_norm, "max_grad_norm", at_least(0), kSame,
        "Gradients with a larger norm are scaled down to it. 0: no clipping.", "0.3");
  field(train.router_aux_loss_coef, "router_aux_loss_coef",
        between(0, kMaxFactor).otherwise("from the model's config.json"), kSame,
        "Mixtures of experts: factor of the routers' load-balancing loss, which is averaged over "
        "the micro-batches of a step. 0: no such loss.",
        "0.001");
  field(train.bf16, "bf16", any().otherwise("from model.dtype"), kSame,
        "true: same as model.dtype bf16. false: not bf16.", "true");
  field(train.fp16, "fp16", any().otherwise("from model.dtype"), kSame,
        "true: same as model.dtype fp16. false: not fp16.", "false");
  field(train.gradient_checkpointing, "gradient_checkpointing", any(), kAny,
        "What is recomputed in the backward pass, to save memory. true: each layer, about a third "
        "more time. attention, mlp: only the attention or only the MLP block of each layer "
        "(docs/parallelism.md).",
        "true");
  field(train.seed, "seed", between(0, kMaxSeed), kSame,
        "Seed of dropout and of initial LoRA weights.", "42");
}

}  // namespace sftrun::config
