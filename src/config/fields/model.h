#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

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

}  // namespace sftrun::config
