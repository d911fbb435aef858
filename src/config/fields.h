#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "sftrun/config/limits.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"

/// Every field of the configuration, once: its name, its limits, whether it may change when a run
/// resumes, what it means, an example. YAML, overrides, environment, JSON, validation, a run's
/// identity, docs/configuration.md and the JSON Schema are visitors over this list; defaults are in
/// run_config.h.
namespace sftrun::config {

inline Limits any() {
  return {};
}
/// A path, in which `~` is a home directory. "none", "null" and the like mean `none`.
inline Limits a_path(std::string none = {}) {
  return {.is_path = true, .none = std::move(none)};
}
inline Limits at_least(double min) {
  return {.min = min};
}
inline Limits between(double min, double max) {
  return {.min = min, .max = max};
}
inline Limits above_up_to(double min, double max) {
  return {.min = min, .max = max, .above_min = true};
}
inline Limits from_until(double min, double max) {
  return {.min = min, .max = max, .below_max = true};
}

/// Numbers of steps, tokens and records: far from overflow in products, and in what clocks and files hold.
inline constexpr double kMaxCount = 1e12;
/// Fp32 holds what is not above it.
inline constexpr double kMaxFp32 = 3e38;
inline constexpr double kMaxFactor =
    1e6;  ///< of a loss or an update: its squares stay finite in fp32
inline constexpr double kMaxWaitS = 1e6;  ///< for a program, as `timeout` of a reward
inline constexpr double kMaxNegatives = 65536;
inline constexpr double kMaxTokens = 1 << 24;  ///< of a sequence
inline constexpr double kMaxImagePixels = 1 << 28, kMaxImageSide = 1 << 16;
inline constexpr double kMaxDevices = 1 << 16;          ///< of a run
inline constexpr double kMaxSeed = 9007199254740992.0;  ///< 2^53: what JSON's readers keep

template <class Visitor>
void visit_fields(ModelConfig& model, Visitor&& field) {
  using enum OnResume;
  field(
      model.name, "name", a_path().otherwise("required"), kCompared,
      "The model to fine-tune: a directory in Hugging Face layout, a .gguf file, or a name on the "
      "hub: owner/name, owner/name@revision, hf://owner/name/file.gguf (docs/hub.md).",
      "models/SmolLM2-135M-Instruct");
  field(model.revision, "revision", any().otherwise("main"), kCompared,
        "Branch, tag or commit of a model on the hub.", "main");
  field(model.max_seq_len, "max_seq_len", between(1, kMaxTokens), kSame,
        "Tokens per packed sequence; without packing the maximum length of an example.", "2048");
  field(model.dtype, "dtype", any(), kSame,
        "Compute dtype. auto: bf16 on GPUs and on CPUs with bf16 instructions (AVX512-BF16), else "
        "fp32.",
        "bf16");
  field(
      model.attention, "attention", any(), kAny,
      "Attention kernel on CUDA. auto: cuDNN on Hopper GPUs for documents of one length from 1024 "
      "tokens, else FlashAttention 2. flash: FlashAttention 2. cudnn: cuDNN wherever it can be "
      "used (docs/attention.md), else FlashAttention. measure: times both at the first batch of "
      "each shape and uses the faster one, so two runs may differ in their last bits.",
      "flash");
  field(model.chat_template, "chat_template", a_path().otherwise("the model's own"), kCompared,
        "A Jinja chat template: a file, a directory with a tokenizer's files, the template itself, "
        "or the name of a built-in one (chatml, llama3, llama2, mistral, gemma, phi3, zephyr, "
        "vicuna, alpaca).",
        "chatml");
  field(model.projectors, "projectors", any(), kSame,
        "Projectors of features that other encoders computed, by names that records use "
        "(docs/images.md). Each is a linear layer of input_width to hidden (default: the model's "
        "hidden size), GELU, and a linear layer to the model. tokens: rows in the text for the "
        "features of one file, as means of neighbouring rows (default: one for each row). New ones "
        "start with random weights, and tuning.train_parts must name projector.",
        "{world: {input_width: 1024, hidden: 2048, tokens: 64}}");
}

template <class Visitor>
void visit_fields(LoraConfig& lora, Visitor&& field) {
  using enum OnResume;
  field(lora.r, "r", between(1, 65536), kSame, "LoRA rank.", "16");
  field(lora.alpha, "alpha", above_up_to(0, kMaxFp32), kSame,
        "LoRA scale: the low-rank product is multiplied by alpha / r.", "32");
  field(lora.dropout, "dropout", from_until(0, 1), kSame, "Dropout on the input of LoRA's A.",
        "0.05");
  field(lora.target_modules, "target_modules", any(), kSame,
        "Modules that get LoRA: endings of the names of linear layers, embed_tokens, lm_head. "
        "all-linear: every linear layer except lm_head. Text with special characters is, as in "
        "PEFT, a regular expression that matches whole names of modules: "
        "'.*layers\\.(8|9)\\..*_proj'.",
        "[q_proj, k_proj, v_proj, o_proj]");
  field(lora.target_parameters, "target_parameters", any(), kSame,
        "Mixtures of experts: endings of the names of experts' matrices and routers that get LoRA.",
        "[mlp.experts.gate_up_proj, mlp.experts.down_proj]");
  field(lora.rslora, "rslora", any(), kSame,
        "Scale by alpha / sqrt(r) instead of alpha / r (rank-stabilised LoRA).", "true");
  field(lora.rank_pattern, "rank_pattern", any(), kSame,
        "Ranks of modules that differ from `r`. Keys are names, endings of names, or regular "
        "expressions of Python's re, as in PEFT; the first match applies.",
        "{o_proj: 8, 'layers.[01].mlp.down_proj': 32}");
  field(lora.alpha_pattern, "alpha_pattern", any(), kSame,
        "The same for `alpha`, which is divided by the rank of the module.", "{o_proj: 16}");
  field(lora.dora, "dora", any(), kSame,
        "DoRA (weight-decomposed LoRA): the magnitude of each row of the weight is trained, too.",
        "true");
  field(lora.modules_to_save, "modules_to_save", any(), kSame,
        "Modules that are fully trained and saved in the adapter: names or endings of names.",
        "[lm_head, embed_tokens]");
  field(lora.init, "init", any(), kSame,
        "Initial LoRA weights. default: A random, B zero. pissa: the largest singular values of "
        "the base weights, which are subtracted from the base.",
        "pissa");
  field(lora.init_from, "init_from", a_path().otherwise("new LoRA weights"), kAny,
        "A PEFT adapter to start from: its directory, its run directory, or a name on the hub.",
        "runs/first");
}

template <class Visitor>
void visit_fields(TuningConfig& tuning, Visitor&& field) {
  using enum OnResume;
  field(tuning.mode, "mode", any(), kSame,
        "lora: trains LoRA on a frozen base. qlora: the same on a quantised base (4 bits unless "
        "`quant` says otherwise). full: trains all parameters. partial: trains the parameters that "
        "`trainable` matches.",
        "lora");
  field(tuning.backend, "backend", any(), kCompared,
        "fused: fused operations (`unsloth` is an alias). bnb: plain operations with the numerics "
        "of transformers and bitsandbytes.",
        "fused");
  field(tuning.quant, "quant",
        any().otherwise("the format of the model's files; else nf4 for mode qlora, none otherwise"),
        kSame,
        "Format of the frozen linear layers, except routers. " +
            quant_descriptions(quant_names(&QuantFormatInfo::is_made)) +
            ". gguf, mxfp4: the blocks in the file. stored: any quantised format of the files. "
            "none: dequantised to the run's dtype.",
        "nf4");
  field(tuning.double_quant, "double_quant", any(), kSame,
        join(quant_names(&QuantFormatInfo::can_nest), ", ") +
            ": the block scales are quantised, too (4.13 bits per value instead of 4.5).",
        "true");
  field(tuning.quant_block_size, "quant_block_size", any(), kSame,
        join(quant_names(&QuantFormatInfo::has_blocks), ", ") +
            ": number of values that share a scale: 32, 64, 128, 256, 512, 1024, 2048 or 4096.",
        "64");
  field(tuning.quant_embeddings, "quant_embeddings", any().otherwise("as in the model's files"),
        kSame,
        "Whether embedding and head are quantised as `quant` says (true) or kept in the run's "
        "dtype (false).",
        "false");
  field(tuning.skip_modules, "skip_modules", any(), kSame,
        "Modules that are not quantised: names or parts of names.", "[layers.0, down_proj]");
  field(tuning.trainable, "trainable", any(), kSame,
        "For mode partial: regular expressions. Parameters whose names match one of them are "
        "trained.",
        "['layers\\.(28|29)\\.', 'norm']");
  field(
      tuning.train_parts, "train_parts", any(), kSame,
      "Models with images: the parts that train; the others are frozen. A list of language, "
      "projector and vision, which train as `mode` says; or, with LoRA, a map of parts to lora and "
      "full. LoRA's targets are looked for in these parts only.",
      "{language: lora, projector: full}");
}

template <class Visitor>
void visit_fields(DataConfig& data, Visitor&& field) {
  using enum OnResume;
  field(
      data.train, "train", any().otherwise("required"), kCompared,
      "Training data: a file (JSON lines, JSON, CSV, TSV, Parquet, Arrow; also .gz and .zst), a "
      "glob, a folder, a data set on the hub, or a list of these, each as {path, name, split, "
      "weight, format, fields, image_root, max_samples}; `name` selects a subset. docs/data.md has "
      "the rules.",
      "[{path: chat.jsonl, weight: 2}, 'code/*.parquet']");
  field(data.val, "val", any().otherwise("none"), kAny,
        "Validation data, in the same form as `train`.", "data/val.jsonl");
  field(data.val_split, "val_split", between(0, kMaxCount), kSame,
        "Instead of `val`: share (below 1) or number (1 or more) of training records to hold out.",
        "0.05");
  field(data.format, "format", any(), kSame,
        "Record format. auto: detected from the records' keys.", "messages");
  field(data.fields, "fields", any(), kSame,
        fmt::format("Names of the columns, if they differ from those of the format: {}; inside "
                    "turns {}. Dots select inside a column. `roles` maps the names of roles.",
                    join(record_columns(), ", "),
                    join(std::vector<std::string>(kTurnFields.begin(), kTurnFields.end()), ", ")),
        "{prompt: question, completion: answers.0.text}");
  field(data.shuffle, "shuffle", any(), kSame,
        "Shuffle the examples in every epoch. The order depends only on the seed.", "true");
  field(data.packing, "packing", any(), kSame,
        "Pack several examples into one sequence of max_seq_len tokens (a bin). Attention does not "
        "cross examples.",
        "true");
  field(data.bin_tokens, "bin_tokens", between(1, 1 << 24), kSame,
        "Tokens per packed sequence (bin); a longer example gets a bin of its own. auto: "
        "max_seq_len, less for small data sets.",
        "1024");
  field(data.group_by_length, "group_by_length", any(), kSame,
        "Without packing: batches with examples of similar length, in random order.", "true");
  field(data.seed, "seed", between(0, kMaxSeed), kSame,
        "Seed of the order of examples and of val_split.", "42");
  field(data.streaming, "streaming", any(), kSame,
        "Tokenize during training instead of before it. Requires train.max_steps.", "true");
  field(data.shuffle_buffer, "shuffle_buffer", between(1, 1 << 24), kSame,
        "Streaming: number of records that are shuffled and packed together.", "65536");
  field(data.cache_dir, "cache_dir", a_path("none").otherwise("~/.cache/sftrun/data"), kAny,
        "Directory of cached tokenized data sets, for later runs and all ranks. none: no cache.",
        "none");
  field(data.loss_on, "loss_on", any(), kSame,
        "Tokens that are trained on (`responses` is an alias of assistant).", "assistant");
  field(data.label_weights, "label_weights", any(), kSame,
        "Weights in the loss of what regular expressions (Python's re) match in an answer; of "
        "several "
        "matches the last one in this list counts. They multiply the messages' own `weight`; the "
        "loss "
        "is divided by the sum of the weights. 0: no label.",
        R"({'(?s)<think>.*?</think>': 0.3})");
  field(data.thinking, "thinking", any(), kSame,
        "Reasoning in earlier assistant turns. template: as the chat template renders it. keep: "
        "kept. split: one example per turn.",
        "template");
  field(data.empty_thinking, "empty_thinking", any(), kSame,
        "Answers for which the template writes empty reasoning (`<think></think>`). warn: train on "
        "it, with a warning. drop: do not train on that part. keep: train on it.",
        "drop");
  field(data.chat_template_kwargs, "chat_template_kwargs", any(), kSame,
        "Variables for the chat template.", "{enable_thinking: false}");
  field(data.too_long, "too_long", any(), kSame,
        "Examples longer than max_seq_len. auto: drop for chat, truncate for text.", "truncate");
  field(data.bad_records, "bad_records", any(), kAny,
        "Records that cannot be used (malformed JSON, a missing key). error: stop, and list the "
        "first ten with their lines. skip: leave them out, and count them.",
        "skip");
  field(data.classes, "classes", any(), kSame,
        readers_of_setting("data.classes") +
            ": names of the classes, in the order of their scores. Without it: those of a model "
            "that is a classifier, else "
            "what the records have as \"label\" or \"labels\", in alphabetical or numerical order.",
        "[negative, positive]");
  field(data.query_prompt, "query_prompt", any(), kSame,
        readers_of_setting("data.query_prompt") +
            ": text before each query, which is saved as the prompt `query` of "
            "sentence-transformers.",
        "\"query: \"");
  field(data.document_prompt, "document_prompt", any(), kSame,
        readers_of_setting("data.document_prompt") +
            ": text before all other texts, which is saved as the prompt `document`.",
        "\"passage: \"");
  field(data.image_root, "image_root", a_path().otherwise("the folder of the record's file"), kAny,
        "Folder of the images, frames of videos and files of features that records name with "
        "relative paths.",
        "data/images");
  field(data.max_image_pixels, "max_image_pixels", between(0, kMaxImagePixels), kSame,
        "Most pixels of an image after resizing, or of its tiles: fewer tokens for large images "
        "(Qwen, Gemma 4, InternVL). 0: the limit of the model's image processor.",
        "1003520");
  field(data.image_longest_edge, "image_longest_edge", between(0, kMaxImageSide), kSame,
        "Most pixels of an image's longer side after resizing (Qwen, SmolVLM, Pixtral). 0: the "
        "limit of the model's image processor.",
        "1024");
}

/// "2e-4"
inline std::string scientific(double value) {
  const double exponent = std::floor(std::log10(value));
  return fmt::format("{:.6g}e{:.0f}", value / std::pow(10, exponent), exponent);
}

/// Keeps products of batch sizes and devices far from overflow.
inline constexpr double kMaxBatch = 1 << 20;
inline constexpr double kMaxEpochs = 1e6;  // their records stay countable

template <class Visitor>
void visit_objective_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.objective, "objective", any(), kSame,
        "Loss that is minimised. " + objective_descriptions(), "dpo");
  field(train.beta, "beta", between(0, kMaxFactor).otherwise("0.1; 0 with grpo"), kSame,
        readers_of_setting("train.beta") +
            ": weight of the distance to the reference model; lower values allow larger changes. "
            "0, of grpo alone: there is no reference model. "
            "Without a reference model: factor of the rewards (SimPO's authors use 2 to 2.5), of "
            "orpo the weight of the odds ratio.",
        "0.1");
  field(train.loss_type, "loss_type", any().otherwise("sigmoid"), kSame,
        readers_of_setting("train.loss_type") +
            ": the loss of a pair, or a map of losses to weights whose sum it is. " +
            loss_formulas(),
        "{sigmoid: 0.8, bco_pair: 0.2, sft: 1.0}");
  field(train.label_smoothing, "label_smoothing",
        from_until(0, 0.5).otherwise(fmt::format("0; {} for exo_pair", kExoSmoothing)), kSame,
        fmt::format("Share of preferences that are taken to be wrong: e in the losses {}.",
                    losses_that_read("train.label_smoothing")),
        "0.1");
  field(train.ld_alpha, "ld_alpha", between(0, 1).otherwise("1"), kSame,
        readers_of_setting("train.ld_alpha") +
            ": weight of the log-probabilities of tokens of an answer beyond the length of the "
            "shorter answer (LD-DPO, arXiv:2409.06411).",
        "0.5");
  field(train.f_divergence, "f_divergence", any(), kSame,
        readers_of_setting("train.f_divergence") +
            ": what measures the distance to the reference model (arXiv:2309.16240), for losses of "
            "the difference h.",
        "js_divergence");
  field(train.f_alpha_divergence_coef, "f_alpha_divergence_coef", between(-kMaxFactor, kMaxFactor),
        kSame, "Alpha of `f_divergence: alpha_divergence`; 1 is reverse_kl.", "0.5");
  field(train.discopop_tau, "discopop_tau", above_up_to(0, kMaxFactor), kSame,
        "Temperature tau of the loss discopop.", "0.05");
  field(train.simpo_gamma, "simpo_gamma", between(0, kMaxFactor), kSame,
        readers_of_setting("train.simpo_gamma") +
            ": margin by which the mean reward of the chosen answer should be higher: gamma in "
            "-log sigmoid(beta (c / n_c - r / n_r) - gamma).",
        "0.5");
  field(train.cpo_alpha, "cpo_alpha", between(0, kMaxFactor).otherwise("1; 0 with simpo"), kSame,
        readers_of_setting("train.cpo_alpha") +
            ": weight of the cross-entropy of the chosen answers, which is added to the loss.",
        "1");
  field(train.desirable_weight, "desirable_weight", between(0, kMaxFactor), kSame,
        readers_of_setting("train.desirable_weight") +
            ": weight of desirable answers. The number of desirable answers times their weight "
            "should be 1 to 1.33 times that of undesirable ones (arXiv:2402.01306, equation 8).",
        "1");
  field(train.undesirable_weight, "undesirable_weight", between(0, kMaxFactor), kSame,
        readers_of_setting("train.undesirable_weight") + ": weight of undesirable answers.", "1");
  field(train.epsilon, "epsilon", between(0, 1e6), kSame,
        readers_of_setting("train.epsilon") +
            ": ratios of the model to the one that sampled are clipped below 1 - epsilon, and "
            "above 1 "
            "+ epsilon_high.",
        "0.2");
  field(
      train.epsilon_high, "epsilon_high", between(0, 1e6).otherwise("epsilon; 5 with cispo"), kSame,
      readers_of_setting("train.epsilon_high") +
          ": upper bound of ratios (DAPO's authors use 0.28). With `loss_type: cispo` the largest "
          "ratio itself (its authors use 5).",
      "0.28");
  field(train.delta, "delta", above_up_to(1, kMaxFactor).otherwise("none"), kSame,
        readers_of_setting("train.delta") +
            ": bound of ratios of answers with a negative advantage, which have none otherwise "
            "(arXiv:2505.07291); above 1 + epsilon_high.",
        "4");
  field(
      train.importance_sampling_level, "importance_sampling_level", any(), kSame,
      readers_of_setting("train.importance_sampling_level") +
          ": what has a ratio. token: each token. sequence: each answer, the geometric mean of its "
          "tokens' (GSPO, arXiv:2507.18071), with a small epsilon and `loss_type: grpo`.",
      "sequence");
  field(train.scale_rewards, "scale_rewards", any(), kSame,
        readers_of_setting("train.scale_rewards") +
            ": what advantages, which are rewards minus the mean of their group, are divided by. "
            "group: the standard deviation of the group. batch: that of all rewards. none: 1.",
        "none");
  field(
      train.mask_truncated_completions, "mask_truncated_completions", any(), kSame,
      readers_of_setting("train.mask_truncated_completions") +
          ": leave answers that reached their limit of tokens out of the loss (their rewards count "
          "in their groups).",
      "true");
  field(train.max_completion_length, "max_completion_length", between(1, 1 << 24), kSame,
        "The length that `loss_type: dr_grpo` divides the sum over an answer's tokens by: the most "
        "tokens that answers may have.",
        "1024");
  field(
      train.sampling_correction, "sampling_correction", any(), kSame,
      readers_of_setting("train.sampling_correction") +
          ": what is done where another engine sampled the answers, and records have its "
          "log-probabilities (`sampling_logprobs`) beside those of the model: the loss of a token "
          "is "
          "multiplied by the ratio of the two, of the token or of its whole answer, up to "
          "sampling_correction_max (truncate), or by 0 above it (mask). off: nothing.",
      "token_truncate");
  field(train.sampling_correction_max, "sampling_correction_max", above_up_to(0, kMaxFactor), kSame,
        "The largest ratio of `train.sampling_correction`.", "2");
  field(train.center_rewards_coefficient, "center_rewards_coefficient", between(0, kMaxFactor),
        kSame,
        readers_of_setting("train.center_rewards_coefficient") +
            ": weight of the mean of (chosen score + rejected score)^2 in the loss, which keeps "
            "scores "
            "near 0 (arXiv:2312.09244, TRL's name).",
        "0.01");
  field(train.problem_type, "problem_type", any(), kSame,
        readers_of_setting("train.problem_type") +
            ": whether a text has one class (cross-entropy) or any number of them (binary "
            "cross-entropy of each class), by transformers' names. auto: several if records have "
            "\"labels\".",
        "multi_label_classification");
  field(train.pooling, "pooling", any(), kSame,
        readers_of_setting("train.pooling") +
            ": which hidden states are the embedding of a text: that of its last token, or the "
            "mean of all of its tokens.",
        "mean");
  field(train.embed_temperature, "embed_temperature", above_up_to(0, kMaxFactor), kSame,
        readers_of_setting("train.embed_temperature") +
            ": divides similarities before the softmax; 1 / `scale` of sentence-transformers' "
            "MultipleNegativesRankingLoss, whose default is 20.",
        "0.02");
  field(train.embed_normalize, "embed_normalize", any(), kSame,
        readers_of_setting("train.embed_normalize") +
            ": embeddings have length 1, and similarities are cosines; else they are dot products.",
        "false");
  field(train.embed_symmetric, "embed_symmetric", any(), kSame,
        readers_of_setting("train.embed_symmetric") +
            ": the loss is the mean of that of finding each query's text and that of finding each "
            "text's query (MultipleNegativesSymmetricRankingLoss).",
        "true");
  field(train.negatives, "negatives", between(0, kMaxNegatives), kSame,
        readers_of_setting("train.negatives") +
            ": texts of each record that do not fit its query; a record that has more gives its "
            "first ones. Without it as many as the first record has.",
        "7");
  field(
      train.reference, "reference", any(), kSame,
      readers_of_setting("train.reference") +
          ": the reference model. start: the model as the run starts, with the adapter of "
          "tuning.lora.init_from. base: the base model, with adapters switched off. Else another "
          "model (a folder or a GGUF file) or an adapter of this one, which is loaded alone before "
          "the run's own, for the log-probabilities of all answers; not with kto and grpo.",
      "base");
  field(train.reference_logps, "reference_logps", any(), kSame,
        readers_of_setting("train.reference_logps") +
            ": when the reference model's log-probabilities are computed. online: in each step. "
            "precomputed: once, before the first step; they are kept beside the tokenized data "
            "(data.cache_dir).",
        "precomputed");
  field(train.teacher, "teacher", any(), kCompared,
        readers_of_setting("train.teacher") +
            ": the teacher: a folder in which `sftrun score --topk` has written its "
            "log-probabilities of this run's examples, or a model, which is loaded beside the "
            "student: a folder, a GGUF file, a name on the hub, or an adapter "
            "(docs/distillation.md).",
        "teacher");
  field(train.teacher_topk, "teacher_topk", between(1, kMaxTokens), kSame,
        readers_of_setting("train.teacher_topk") +
            ": of a teacher beside the student: its likeliest tokens, whose log-probabilities are "
            "compared one by one; the others count together. The size of the vocabulary, or more: "
            "the whole distribution.",
        "128");
  field(train.teacher_quant, "teacher_quant", any().otherwise("the format of its files"), kSame,
        readers_of_setting("train.teacher_quant") +
            ": of a teacher beside the student: the format of its linear layers in memory, as "
            "tuning.quant has it.",
        "nf4");
  field(train.kd_alpha, "kd_alpha", between(0, 1), kSame,
        readers_of_setting("train.kd_alpha") +
            ": share of the divergence in the loss; the rest is the cross-entropy of the labels.",
        "0.9");
  field(train.kd_beta, "kd_beta", between(0, 1), kSame,
        readers_of_setting("train.kd_beta") +
            ": the divergence. 0: KL(teacher || student), 1: KL(student || teacher), between: the "
            "generalised Jensen-Shannon divergence of arXiv:2306.13649, as `beta` of TRL's "
            "GKDTrainer.",
        "0.5");
  field(train.kd_temperature, "kd_temperature", above_up_to(0, kMaxFactor), kSame,
        readers_of_setting("train.kd_temperature") +
            ": divides the logits of teacher and student in the divergence, as `temperature` of "
            "TRL's GKDTrainer. The teacher's scores must have been written with it.",
        "2.0");
}

template <class Visitor>
void visit_batch_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.epochs, "epochs", Limits{.min = 0, .max = kMaxEpochs, .above_min = true}, kLength,
        "Passes over the data.", "3");
  field(train.max_steps, "max_steps", between(1, kMaxCount).otherwise("from epochs"), kLength,
        "Stop after this number of optimizer steps; overrides epochs.", "200");
  field(train.batch_size, "batch_size", between(1, kMaxBatch), kAny,
        "Packed sequences of max_seq_len tokens (without packing: examples, with " +
            objectives_for(ExampleForm::kPair) + " pairs) per device and micro-batch.",
        "4");
  field(train.grad_accum, "grad_accum", between(1, kMaxBatch), kAny,
        "Micro-batches per optimizer step.", "4");
  field(train.global_batch_size, "global_batch_size", between(1, kMaxBatch), kSame,
        "batch_size * grad_accum * devices. If this and grad_accum are auto, the target is 32, "
        "less for small data sets.",
        "32");
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
        "Write checkpoints from a copy in the host's memory while training continues. auto: if the "
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

template <class Visitor>
void visit_device_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.ddp_find_unused_parameters, "ddp_find_unused_parameters", any(), kAny,
        "Accepted for compatibility, without effect: parameters without a gradient are always "
        "allowed.",
        "false");
  field(train.ddp_broadcast_buffers, "ddp_broadcast_buffers", any(), kAny,
        "Accepted for compatibility, without effect: models have no buffers that change.", "false");
  field(
      train.ddp_comm_hook, "ddp_comm_hook", any(), kAny,
      "How ddp and pipeline send gradients. none: in fp32. bf16: rounded to bf16, half the bytes; "
      "the sums are then rounded, too.",
      "bf16");
  field(train.ddp_bucket_cap_mb, "ddp_bucket_cap_mb", between(1, kMaxBatch), kAny,
        "Size of a gradient bucket for the all-reduce, in MiB.", "200");
  field(train.dataloader_num_workers, "dataloader_num_workers", between(0, 256), kAny,
        "Threads that prepare data. 0: all that the process may use.", "4");
  field(train.dataloader_pin_memory, "dataloader_pin_memory", any(), kAny,
        "Copy batches through page-locked (pinned) memory (CUDA).", "true");
  field(train.cuda_graphs, "cuda_graphs", any(), kAny,
        "Capture the forward and backward pass of a micro-batch in a CUDA graph if its shape "
        "repeats; shapes are rounded up to a few sizes. auto: only for micro-batches that are so "
        "small that launching kernels takes longer than computing (docs/cuda-graphs.md).",
        "off");
}

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
        "The most tokens that an answer has. `loss_type: dr_grpo` divides by it.", "1024");
  field(rollouts.temperature, "temperature", between(0.01, 100), kSame,
        "Logits are divided by it before a token is drawn. With another value than 1 the answers "
        "are not the model's own, and with rewards train.sampling_correction corrects for it.",
        "0.9");
  field(rollouts.top_p, "top_p", between(0.01, 1), kSame,
        "Tokens are drawn from the likeliest ones whose probabilities reach this sum.", "0.95");
  field(rollouts.top_k, "top_k", between(1, kMaxCount).otherwise("none"), kSame,
        "Tokens are drawn from so many of the likeliest ones.", "50");
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

template <class Visitor>
void visit_fields(TrainConfig& train, Visitor&& field) {
  visit_objective_fields(train, field);
  visit_batch_fields(train, field);
  visit_optimizer_fields(train, field);
  visit_schedule_fields(train, field);
  visit_device_fields(train, field);
}

template <class Visitor>
void visit_fields(OffloadConfig& offload, Visitor&& field) {
  using enum OnResume;
  field(offload.optimizer, "optimizer", any(), kAny,
        "Optimizer state: train.optimizer adamw becomes paged_adamw, adamw_8bit paged_adamw_8bit.",
        "cpu");
  field(offload.activations, "activations", any(), kAny,
        "With train.gradient_checkpointing: the inputs of layers, between the forward and the "
        "backward pass.",
        "cpu");
  field(offload.base, "base", any(), kAny,
        "Frozen weights, in their own format (4 bits stay 4 bits). Each layer is copied to the GPU "
        "for each use, the next one while the current one computes.",
        "cpu");
  field(offload.params, "params", any(), kAny,
        "Trained weights, with their gradients and optimizer state, for tuning.mode full and "
        "partial. Each layer is copied to the GPU for each use, its gradients are copied back, and "
        "the CPU updates the weights. Not with zero1, zero2, pipeline, tensor and device_map.",
        "cpu");
}

template <class Visitor>
void visit_fields(ParallelConfig& parallel, Visitor&& field) {
  using enum OnResume;
  field(parallel.strategy, "strategy", any(), kAny,
        "How devices share the work; each computes a part of the batch. auto: ddp if the run fits, "
        "else the first of the others that does. ddp: every device has the whole model. zero1: "
        "optimizer state is divided over the devices. zero2: gradients, too. zero3, fsdp: also all "
        "weights, which are gathered layer by layer in their own format (4 bits stay 4 bits). "
        "hybrid: as fsdp within each group of `dp_shard` devices, and copies on the other groups. "
        "pipeline: each device has some of the layers; the parts of a batch pass through them one "
        "after the other. tensor: each device has a part of every matrix, and they compute each "
        "layer together. device_map: the same inside one process, see `device_map`. "
        "All give the same losses.",
        "fsdp");
  field(parallel.dp_replicate, "dp_replicate",
        between(1, kMaxDevices).otherwise("the remaining devices"), kAny,
        "Number of copies of the model, each with its part of the batch. The product of "
        "dp_replicate, dp_shard, pp and tp is the number of all devices.",
        "2");
  field(
      parallel.dp_shard, "dp_shard", between(1, kMaxDevices).otherwise("as the strategy says"),
      kAny,
      "Number of devices over which one copy of the model is divided, as the strategy says (zero1 "
      "to fsdp; with auto, pipeline and tensor as fsdp), each with its part of the batch. If it is "
      "not set, hybrid takes the devices of one machine, other strategies all remaining devices.",
      "8");
  field(parallel.pp, "pp", between(1, kMaxDevices).otherwise("as the strategy says"), kAny,
        "Number of stages into which the layers are divided. If it is not set, pipeline takes all "
        "remaining devices. It can be combined with dp_shard, dp_replicate and tp. For "
        "device_map: the number of devices to use. train.grad_accum should be several times as "
        "large.",
        "4");
  field(parallel.tp, "tp", between(1, kMaxDevices).otherwise("as the strategy says"), kAny,
        "Number of devices that divide each matrix. If it is not set, tensor takes all remaining "
        "devices. The number of attention heads must be a multiple of it. It can be combined with "
        "dp_shard, dp_replicate and pp.",
        "2");
  field(parallel.fetch, "fetch", any(), kAny,
        "How often divided or offloaded weights are copied to a device. per_micro_batch: for the "
        "forward and the backward pass of each micro-batch. per_step: once for the forward and "
        "once for the backward passes of all micro-batches of a step (grad_accum); their "
        "activations are then kept at the same time. auto: per_step if offload.activations and one "
        "of offload.base and offload.params are cpu.",
        "per_step");
  field(
      parallel.device_map, "device_map", any().otherwise("none"), kAny,
      "One process with the layers on several GPUs of the machine. auto, balanced: the same number "
      "of bytes on each (weights in their own formats, with what trains). sequential: the first "
      "GPU is filled, then the next. Or a map of modules "
      "to GPUs, as in transformers: `{model.embed_tokens: 0, model.layers.0-15: 0, "
      "model.layers.16-31: 1, lm_head: 1}`.",
      "auto");
  field(parallel.backend, "backend", any(), kAny,
        "Library for collectives. auto: nccl between GPUs, else gloo.", "gloo");
  field(parallel.timeout, "timeout", any(), kAny,
        "Maximum time that ranks wait for each other, at the rendezvous and in every collective "
        "(90s, 10m, 1h; a number alone is seconds).",
        "10m");
  field(
      parallel.stall_after, "stall_after", any(), kAny,
      "Time without progress after which the log says which ranks the others wait for, and what "
      "these do and since when. The run continues. At most a third of `timeout`. A number alone is "
      "seconds.",
      "1m");
  field(parallel.accelerate, "accelerate", a_path().otherwise("none"), kAny,
        "A configuration file of Accelerate (`accelerate config`): number of processes and "
        "machines, strategy, dtype (docs/coming-from.md).",
        "configs/accelerate/multi_gpu_fsdp.yaml");
  field(parallel.deepspeed, "deepspeed", a_path().otherwise("none"), kAny,
        "A configuration file of DeepSpeed, in JSON: ZeRO stage, dtype, batch sizes, optimizer, "
        "schedule. `auto` in it takes the run's value (docs/coming-from.md).",
        "configs/deepspeed/zero2.json");
}

template <class Visitor>
void visit_fields(OutputConfig& output, Visitor&& field) {
  using enum OnResume;
  field(output.dir, "dir", a_path().otherwise("runs/<name of the YAML file>"), kAny,
        "Run directory.", "runs/first");
  field(output.tensorboard, "tensorboard", any(), kAny, "Write TensorBoard event files.", "true");
}

template <class Visitor>
void visit_fields(CallbacksConfig& callbacks, Visitor&& field) {
  using enum OnResume;
  field(callbacks.command, "command", any().otherwise("none"), kAny,
        "A command that rank 0 starts with `sh -c` at events of the run, which it reads as JSON "
        "from its standard input and in SFTRUN_ variables (docs/callbacks.md).",
        "'./notify.sh \"$SFTRUN_EVENT\"'");
  field(callbacks.events, "events", any(), kAny,
        "Events that start the command: checkpoint, evaluation, end, failure.", "[end, failure]");
  field(callbacks.timeout, "timeout", any(), kAny,
        "Time after which a command is ended (90s, 10m; a number alone is seconds).", "5m");
}

/// Calls `section(name, part, help)` for every section, a section before those inside it.
template <class Visitor>
void visit_sections(RunConfig& config, Visitor&& section) {
  section("model", config.model, "The base model.");
  section("tuning", config.tuning, "What is trained, and the format of the base.");
  section("tuning.lora", config.tuning.lora, "LoRA, for the modes lora and qlora.");
  section("data", config.data, "Training and validation data.");
  section("train", config.train, "Optimization, evaluation and checkpoints.");
  section("train.rollouts", config.train.rollouts,
          "Answers that the model writes between steps, and is trained on (docs/grpo.md, "
          "docs/distillation.md).");
  section("parallel", config.parallel, "Distributed training.");
  section("parallel.offload", config.parallel.offload,
          "What a GPU keeps in the host's memory, which is locked for fast copies. Losses stay the "
          "same.");
  section("output", config.output, "Output files.");
  section("callbacks", config.callbacks, "A command at events of the run.");
}

}  // namespace sftrun::config
