#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

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

}  // namespace sftrun::config
