#pragma once

#include <limits>
#include <string_view>

#include "sftrun/config/run_config.h"

/// Every field of the configuration, once: its name, its limits, what it means, an example. YAML,
/// overrides, environment, JSON, validation, docs/configuration.md and the JSON Schema are visitors
/// over this list; defaults are in run_config.h.
namespace sftrun::config {

/// What a field takes beyond its type, and how docs show it while it is not set.
struct Limits {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  ///< the bound itself is out
  std::string_view unset = {};  ///< the default in words, where the value implied depends on others

  constexpr Limits otherwise(std::string_view words) const {
    Limits copy = *this;
    copy.unset = words;
    return copy;
  }
};
constexpr Limits any() {
  return {};
}
constexpr Limits at_least(double min) {
  return {.min = min};
}
constexpr Limits above(double min) {
  return {.min = min, .above_min = true};
}
constexpr Limits between(double min, double max) {
  return {.min = min, .max = max};
}
constexpr Limits from_until(double min, double max) {
  return {.min = min, .max = max, .below_max = true};
}

template <class Visitor>
void visit_fields(ModelConfig& model, Visitor&& field) {
  field(
      model.name, "name", any().otherwise("required"),
      "The model to fine-tune: a directory in Hugging Face layout, a .gguf file, or a name on the "
      "hub: owner/name, owner/name@revision, hf://owner/name/file.gguf (docs/hub.md).",
      "models/SmolLM2-135M-Instruct");
  field(model.revision, "revision", any().otherwise("main"),
        "Branch, tag or commit of a model on the hub.", "main");
  field(model.max_seq_len, "max_seq_len", at_least(1),
        "Tokens in a bin when packing; the longest example otherwise.", "2048");
  field(model.dtype, "dtype", any(),
        "Numbers the base model computes in. auto: bf16 on GPUs and on CPUs that multiply it in "
        "hardware (AVX512-BF16), else fp32.",
        "bf16");
  field(
      model.attention, "attention", any(),
      "Attention kernel on CUDA. auto and flash: FlashAttention 2. cudnn: cuDNN's where it can be "
      "used (docs/attention.md), else FlashAttention. measure: times both at the first batch of "
      "each shape and keeps the faster, so that two runs may differ in their last bits.",
      "cudnn");
  field(
      model.chat_template, "chat_template", any().otherwise("the model's own"),
      "A Jinja chat template: a file, the template itself, or the name of a built-in one (chatml, "
      "llama3, llama2, mistral, gemma, phi3, zephyr, vicuna, alpaca).",
      "chatml");
}

template <class Visitor>
void visit_fields(LoraConfig& lora, Visitor&& field) {
  field(lora.r, "r", between(1, 65536), "Rank of the update.", "16");
  field(lora.alpha, "alpha", above(0), "The update is scaled by alpha / r.", "32");
  field(lora.dropout, "dropout", from_until(0, 1), "Dropout on the input of the update.", "0.05");
  field(
      lora.target_modules, "target_modules", any(),
      "Modules that get an update: ends of linear layers' names, embed_tokens, lm_head; all-linear "
      "is every linear layer but lm_head.",
      "[q_proj, k_proj, v_proj, o_proj]");
  field(
      lora.target_parameters, "target_parameters", any(),
      "Of mixtures of experts: the experts' matrices and routers that get an update, by endings of "
      "their names.",
      "[mlp.experts.gate_up_proj, mlp.experts.down_proj]");
  field(lora.rslora, "rslora", any(), "Scale by alpha / sqrt(r) instead (rank-stabilised LoRA).",
        "true");
  field(lora.rank_pattern, "rank_pattern", any(),
        "Ranks of single updates where they are not `r`: names, their ends or regular expressions "
        "over them, as in peft; the first that matches decides.",
        "{o_proj: 8, 'layers.[01].mlp.down_proj': 32}");
  field(lora.alpha_pattern, "alpha_pattern", any(),
        "Likewise where the scale is not of `alpha`; it is divided by the update's own rank.",
        "{o_proj: 16}");
  field(lora.dora, "dora", any(),
        "Weight-decomposed LoRA: the rows of a matrix and its update are scaled to lengths that "
        "train, too.",
        "true");
  field(lora.modules_to_save, "modules_to_save", any(),
        "Modules that train whole beside the updates and are saved with them: names or their ends.",
        "[lm_head, embed_tokens]");
  field(lora.init, "init", any(),
        "How updates start. default: A random, B zero; pissa: from the largest singular values of "
        "the weights, which leave the base.",
        "pissa");
  field(lora.init_from, "init_from", any().otherwise("a fresh update"),
        "A PEFT adapter to start from: its directory or that of its run, or a name on the hub.",
        "runs/first");
}

template <class Visitor>
void visit_fields(TuningConfig& tuning, Visitor&& field) {
  field(tuning.mode, "mode", any(),
        "lora trains a low-rank update beside a frozen base, qlora the same beside one in 4 bits, "
        "full everything, partial what `trainable` matches.",
        "lora");
  field(tuning.backend, "backend", any(),
        "fused: fused operations (`unsloth` is an alias); bnb: plain operations, the reference's "
        "numerics.",
        "fused");
  field(
      tuning.quant, "quant",
      any().otherwise("what the checkpoint is; else nf4 for mode qlora, none otherwise"),
      "Storage of the frozen linear layers but routers: nf4, fp4 or int8, as bitsandbytes has "
      "them; fp8, e4m3 with a factor for each row, products by which take activations in e4m3, "
      "too; gguf or mxfp4, the blocks that the file has; stored, whatever quantised form the files "
      "have; none, unpacked to the run's dtype.",
      "nf4");
  field(
      tuning.double_quant, "double_quant", any(),
      "Of nf4 and fp4: the blocks' factors are quantised, too (4.13 bits a value instead of 4.5).",
      "true");
  field(tuning.quant_block_size, "quant_block_size", any(),
        "Of nf4 and fp4: values that share a factor: 32, 64, 128, 256, 512, 1024, 2048 or 4096.",
        "64");
  field(
      tuning.quant_embeddings, "quant_embeddings",
      any().otherwise("what the checkpoint has of them"),
      "Whether embedding and head are held as `quant` says (true), or in the run's dtype (false).",
      "false");
  field(tuning.skip_modules, "skip_modules", any(),
        "Modules that are not quantised: names or parts of names.", "[layers.0, down_proj]");
  field(
      tuning.trainable, "trainable", any(),
      "For mode partial: regular expressions over parameter names; what one of them finds trains.",
      "['layers\\.(28|29)\\.', 'norm']");
}

template <class Visitor>
void visit_fields(DataConfig& data, Visitor&& field) {
  field(data.train, "train", any().otherwise("required"),
        "What to train on: a file (JSON lines, JSON, CSV, TSV, Parquet, Arrow; also .gz and .zst), "
        "a glob, a folder, a data set on the hub, or a list of these, each as {path, name, split, "
        "weight, format, fields, max_samples}; `name` is that of a subset. docs/data.md has the "
        "rules.",
        "[{path: chat.jsonl, weight: 2}, 'code/*.parquet']");
  field(data.val, "val", any().otherwise("none"), "What to evaluate on, as `train`.",
        "data/val.jsonl");
  field(data.val_split, "val_split", at_least(0),
        "Instead of `val`: the share (below 1) or number (from 1) of training records held out.",
        "0.05");
  field(data.format, "format", any(), "Record format; auto looks at the records' keys.",
        "messages");
  field(data.fields, "fields", any(),
        "Names of the columns that hold what the format needs, where they are not its own: "
        "messages (or conversations), role, content, prompt, completion, instruction, input, "
        "output, system, text, tools; dots lead inside. `roles` maps roles.",
        "{prompt: question, completion: answers.0.text}");
  field(data.shuffle, "shuffle", any(), "A new order every epoch, the same for a given seed.",
        "true");
  field(data.packing, "packing", any(),
        "Pack several examples into one sequence of max_seq_len tokens (a bin); they never see "
        "each other.",
        "true");
  field(data.bin_tokens, "bin_tokens", between(1, 1 << 24),
        "Tokens in a bin when packing; an example that is longer makes the bins as long. auto: "
        "max_seq_len, and less for small data sets.",
        "1024");
  field(data.group_by_length, "group_by_length", any(),
        "Without packing: batches of examples of similar length, in random order.", "true");
  field(data.seed, "seed", at_least(0), "Of the order and of val_split.", "42");
  field(data.streaming, "streaming", any(),
        "Tokenise while training, without reading everything first; needs train.max_steps.",
        "true");
  field(data.shuffle_buffer, "shuffle_buffer", between(1, 1 << 24),
        "When streaming: records that are shuffled and packed together.", "65536");
  field(data.cache_dir, "cache_dir", any().otherwise("~/.cache/sftrun/data"),
        "Where tokenised data sets are kept for later runs and shared by the ranks; none: nowhere.",
        "none");
  field(data.loss_on, "loss_on", any(),
        "Which tokens carry a label (`responses` is an alias of assistant).", "assistant");
  field(
      data.thinking, "thinking", any(),
      "Reasoning in earlier assistant turns: as the template has it, kept, or one example a turn.",
      "template");
  field(data.empty_thinking, "empty_thinking", any(),
        "Answers that begin with empty reasoning (`<think></think>`) as the template writes it: "
        "trained on with a warning, trained on without that part (drop), or trained on.",
        "drop");
  field(data.chat_template_kwargs, "chat_template_kwargs", any(),
        "Variables handed to the chat template.", "{enable_thinking: false}");
  field(
      data.too_long, "too_long", any(),
      "What to do with an example longer than max_seq_len. auto: drop for chat, truncate for text.",
      "truncate");
  field(data.bad_records, "bad_records", any(),
        "Records that cannot be used (malformed JSON, a missing key): error stops and names the "
        "first ten with their lines; skip leaves them out and counts them.",
        "skip");
}

/// Keeps products of batch sizes and devices far from overflow.
inline constexpr double kMaxBatch = 1 << 20;

template <class Visitor>
void visit_batch_fields(TrainConfig& train, Visitor&& field) {
  field(train.epochs, "epochs", above(0), "Passes over the data.", "3");
  field(train.max_steps, "max_steps", at_least(1).otherwise("by epochs"),
        "Optimizer steps to stop after, whatever epochs says.", "200");
  field(train.batch_size, "batch_size", between(1, kMaxBatch),
        "Per device and micro-batch: packed sequences of max_seq_len tokens, or examples without "
        "packing.",
        "4");
  field(train.grad_accum, "grad_accum", between(1, kMaxBatch), "Micro-batches per optimizer step.",
        "4");
  field(
      train.global_batch_size, "global_batch_size", between(1, kMaxBatch),
      "batch_size * grad_accum * devices. Where this and grad_accum are auto the target is 32, and "
      "less for small data sets.",
      "32");
}

template <class Visitor>
void visit_optimizer_fields(TrainConfig& train, Visitor&& field) {
  field(train.learning_rate, "learning_rate",
        between(0, 1).otherwise("2e-4 for lora and qlora, 2e-5 for full and partial"),
        "Peak learning rate, reached when warm-up ends.", "1e-4");
  field(train.scheduler, "scheduler", any(), "Learning rate after warm-up.", "cosine");
  field(train.warmup_ratio, "warmup_ratio", between(0, 1).otherwise("0.03 without warmup_steps"),
        "Linear warm-up, as a share of all steps.", "0.1");
  field(train.warmup_steps, "warmup_steps", at_least(0).otherwise("by warmup_ratio"),
        "Linear warm-up, in optimizer steps.", "20");
  field(train.warmup_from, "warmup_from",
        any().otherwise("zero where warmup_ratio or warmup_steps is given, else first_step"),
        "Where the warm-up begins. zero: at 0, as in transformers, so that the first step does not "
        "move the weights; first_step: of n steps the first has 1/n of the learning rate.",
        "first_step");
  field(train.optimizer, "optimizer", any(),
        "How gradients become updates: docs/optimizers.md compares state size and reference of "
        "each.",
        "adamw_8bit");
  field(train.adam_beta1, "adam_beta1", from_until(0, 1),
        "Decay of the first moment; of Lion, too.", "0.9");
  field(train.adam_beta2, "adam_beta2", from_until(0, 1),
        "Decay of the second moment; of Lion's momentum.", "0.95");
  field(train.adam_epsilon, "adam_epsilon", above(0), "Added to the denominator.", "1e-6");
  field(train.weight_decay, "weight_decay", at_least(0),
        "Weight decay, decoupled from the gradient (sgd: added to it).", "0.01");
  field(train.momentum, "momentum", from_until(0, 1).otherwise("sgd: 0, muon: 0.95"),
        "Momentum of sgd and muon.", "0.9");
  field(train.nesterov, "nesterov", any().otherwise("sgd: false, muon: true"),
        "Nesterov momentum of sgd and muon.", "true");
  field(
      train.muon_lr, "muon_lr", any(),
      "Learning rate of a matrix under muon. match_rms_adamw: times 0.2 sqrt(max(rows, columns)), "
      "so that learning rates for AdamW fit; original: times sqrt(max(1, rows / columns)).",
      "original");
  field(train.loraplus_lr_ratio, "loraplus_lr_ratio", above(0).otherwise("1"),
        "LoRA+: the updates' B, and what has one dimension, learn at so many times learning_rate.",
        "16");
  field(train.neftune_noise_alpha, "neftune_noise_alpha", above(0).otherwise("no noise"),
        "NEFTune: while training, embeddings get uniform noise of up to "
        "alpha / sqrt(tokens of the document * hidden size).",
        "5");
  field(train.max_grad_norm, "max_grad_norm", at_least(0),
        "Gradients of a larger norm are scaled down to it; 0: never.", "0.3");
  field(
      train.router_aux_loss_coef, "router_aux_loss_coef",
      at_least(0).otherwise("what the model's config.json asks for"),
      "Mixtures of experts: what the routers' load-balancing loss is multiplied by, the mean over "
      "a step's micro-batches, before it is added to the loss; 0: there is none.",
      "0.001");
  field(train.bf16, "bf16", any().otherwise("by model.dtype"),
        "true: the same as model.dtype bf16; false: not bf16.", "true");
  field(train.fp16, "fp16", any().otherwise("by model.dtype"),
        "true: the same as model.dtype fp16; false: not fp16.", "false");
  field(train.gradient_checkpointing, "gradient_checkpointing", any(),
        "Recompute each block in the backward pass: less memory, about a third more time.", "true");
  field(train.seed, "seed", at_least(0), "Of dropout and initial adapter weights.", "42");
}

template <class Visitor>
void visit_schedule_fields(TrainConfig& train, Visitor&& field) {
  field(train.eval_strategy, "eval_strategy", any(),
        "When to evaluate. auto: by eval_steps if given, else every epoch if there is validation "
        "data.",
        "steps");
  field(train.eval_steps, "eval_steps", at_least(1).otherwise("none"),
        "Optimizer steps between evaluations.", "200");
  field(train.eval_on_start, "eval_on_start", any(), "Evaluate before the first step too.", "true");
  field(train.eval_batch_size, "eval_batch_size", between(1, kMaxBatch),
        "Bins or examples per device in evaluation. auto: batch_size.", "8");
  field(train.save_steps, "save_steps", at_least(1).otherwise("none"),
        "Optimizer steps between checkpoints.", "500");
  field(train.save_every, "save_every", any(),
        "Time between checkpoints (90s, 10m, 1h30m); 0: only by save_steps and at the end.", "30m");
  field(train.save_total_limit, "save_total_limit", at_least(1).otherwise("all are kept"),
        "Checkpoints to keep; older ones are removed.", "3");
  field(train.logging_steps, "logging_steps", at_least(1),
        "Optimizer steps between lines on the console; metrics.jsonl has every step.", "10");
}

template <class Visitor>
void visit_device_fields(TrainConfig& train, Visitor&& field) {
  field(train.ddp_find_unused_parameters, "ddp_find_unused_parameters", any(),
        "Accepted from other trainers' files; parameters without a gradient are always allowed.",
        "false");
  field(train.ddp_broadcast_buffers, "ddp_broadcast_buffers", any(),
        "Accepted from other trainers' files; models here have no buffers that change.", "false");
  field(train.ddp_bucket_cap_mb, "ddp_bucket_cap_mb", at_least(1),
        "Gradient bytes summed over the devices at once, in MiB.", "200");
  field(train.dataloader_num_workers, "dataloader_num_workers", between(0, 256),
        "Threads that prepare data; 0: as many as the process may use.", "4");
  field(train.dataloader_pin_memory, "dataloader_pin_memory", any(),
        "Stage batches in page-locked memory (CUDA).", "true");
  field(train.cuda_graphs, "cuda_graphs", any(),
        "Capture the forward and backward pass of a micro-batch in a CUDA graph where its shape "
        "comes again; shapes are rounded up to few. auto: of micro-batches so small that launching "
        "would take longer than computing (docs/cuda-graphs.md).",
        "off");
}

template <class Visitor>
void visit_fields(TrainConfig& train, Visitor&& field) {
  visit_batch_fields(train, field);
  visit_optimizer_fields(train, field);
  visit_schedule_fields(train, field);
  visit_device_fields(train, field);
}

template <class Visitor>
void visit_fields(ParallelConfig& parallel, Visitor&& field) {
  field(
      parallel.strategy, "strategy", any(),
      "How the model is spread over the devices. auto: single on one process; ddp on several: each "
      "has the whole model, and gradients are summed.",
      "ddp");
  field(parallel.backend, "backend", any(),
        "Library of the collectives. auto: nccl between GPUs, gloo otherwise.", "gloo");
  field(parallel.timeout, "timeout", any(),
        "How long ranks wait for one another: to come, and in every collective (90s, 10m, 1h).",
        "10m");
}

template <class Visitor>
void visit_fields(OutputConfig& output, Visitor&& field) {
  field(output.dir, "dir", any().otherwise("runs/<name of the yaml>"), "The run directory.",
        "runs/first");
  field(output.tensorboard, "tensorboard", any(), "Write TensorBoard event files.", "true");
}

/// Calls `section(name, part, help)` for every section, a section before those inside it.
template <class Visitor>
void visit_sections(RunConfig& config, Visitor&& section) {
  section("model", config.model, "The base model.");
  section("tuning", config.tuning, "What trains.");
  section("tuning.lora", config.tuning.lora, "The low-rank update, for the modes lora and qlora.");
  section("data", config.data, "What it learns from.");
  section("train", config.train, "How it learns.");
  section("parallel", config.parallel, "Several devices.");
  section("output", config.output, "Where results go.");
}

}  // namespace sftrun::config
