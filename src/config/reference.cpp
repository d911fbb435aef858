#include <fmt/format.h>

#include <algorithm>

#include "binding.h"
#include "layers.h"
#include "sftrun/core/strings.h"
#include "yaml_text.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

One YAML file describes a run. This page lists every key; `sftrun config reference` prints it, `sftrun config schema` prints a
JSON Schema for editors, `sftrun config check --config run.yaml` judges a file and `sftrun config show --config run.yaml` prints
what would run, every default and automatic value written out.

The smallest file that trains:
```yaml
model:
  name: models/SmolLM2-135M-Instruct   # a directory in Hugging Face layout or a .gguf file
data:
  train: data/train.jsonl              # {"messages": […]}, {"prompt", "completion"}, Alpaca or {"text"} records; docs/data.md
```

## Where values come from
The first of these that names a key wins; every override in force is printed when a run starts.

1. the command line: `sftrun train --config run.yaml train.batch_size=4 'tuning.lora.target_modules=[q_proj, v_proj]'`
2. the environment: `SFTRUN_TRAIN__BATCH_SIZE=4` (two underscores a level)
3. the run's YAML
4. the machine file: `SFTRUN_MACHINE_CONFIG`, or `sftrun/machine.yaml` in `XDG_CONFIG_HOME` or `~/.config`, with the keys
   `devices` (2, [0, 2, 3], auto or cpu), `dtype`, `strategy`, `nodes`, `node_rank` and `master` (host or host:port)
5. the default

Values are YAML everywhere; an empty value or `null` gives the default back. `yes`, `no`, `on` and `off` are booleans, as in
YAML 1.1. Paths are looked up from the current directory, then from the YAML's. Unknown keys are errors: keys of transformers, TRL, PEFT,
bitsandbytes, Axolotl, LLaMA-Factory, torchtune, Unsloth and Accelerate are answered with what to write instead, or why to remove them, others
with the nearest key. The first twenty problems of a file are reported at once, with a count.

With `make`, the keys of `train` and `model` are variables in capitals: `make train-distributed CONFIG=run.yaml TRAIN_BATCH_SIZE=1
TRAIN_GRAD_ACCUM=32 MODEL_MAX_SEQ_LEN=1024` means `train.batch_size=1 train.grad_accum=32 model.max_seq_len=1024`.

)";

constexpr std::string_view kEnd = R"(## What `auto` becomes
`sftrun train --dry-run` prints every value that the run will use, `sftrun config show` as well where the model is a file or directory here;
`config.resolved.yaml` in the run directory holds what was used.

| key | `auto` becomes |
|---|---|
| `model.dtype` | `bf16` on GPUs and on CPUs with AVX512-BF16, else `fp32` |
| `model.attention` | `flash` |
| `tuning.quant` | beside quantised files what they have: `gguf`, `mxfp4`, or `stored` (bitsandbytes' forms, FP8); else `nf4` for mode qlora, `none` otherwise |
| `parallel.strategy` | `single` on one process, `ddp` on several |

Both commands also print optimizer steps and tokens per epoch: exactly where all records were read (data sets of fewer than 100 records, without
`val_split`), else estimated from the first 100 records of each data set. They estimate a duration only where `output.dir` holds the metrics of an
earlier run, at its tokens per second: nothing is measured for it, and evaluation is not counted.

## Batch sizes
`batch_size * grad_accum * devices = global_batch_size`. What is `auto` follows from the others; with all three `auto` the target
is 32 a step: the largest micro-batch that divides it over the devices with at least 4 accumulation steps. The order of examples,
and so the run, depends on `global_batch_size` alone, not on how it is split. (The load-balancing loss of mixtures of experts is one of
each micro-batch, and does depend on it; `train.router_aux_loss_coef` multiplies the mean. transformers' Trainer, which adds that of every
micro-batch in full, weighs it `grad_accum` times as much.)

Small data sets: an epoch is to have 50 steps. Where `global_batch_size` and `grad_accum` are `auto` and 32 bins a step leave fewer, a step has
fewer bins, down to one a device; where that is not enough and `data.bin_tokens` is `auto`, bins hold fewer tokens, down to 256 (an example that is
longer has a bin to itself). A run that goes on keeps what it began with. With `train.max_steps` and with `data.streaming` nothing is changed.

## Accepted without an effect
These tune evaluation in ways that this version does not have; each is answered with a warning: `train.predict_with_generate`,
`train.generation_*`, `train.eval_accumulation_steps`, `train.eval_do_concat_batches`.

## Not in this version
These would change the result, so they are errors: `tuning.train_parts`, `train.early_stopping`, every `parallel.strategy` but `single` and `ddp`, `parallel.tp`, `pp`,
`device_map`, `offload`, `deepspeed` and `accelerate`.
)";

/// A table cell: bars would end it.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.insert(at, "\\");
  return text;
}

std::string default_text(const Field& field) {
  if (!field.limits.unset.empty()) return std::string(field.limits.unset);
  return fmt::format("`{}`", yaml_text(field.get()));
}

std::string takes_text(const Field& field) {
  if (field.words.empty()) return field.takes();
  std::string text;
  for (const std::string& word : field.words)
    text += fmt::format("{}`{}`", text.empty() ? "" : ", ", word);
  return text;
}

std::string make_variable(const Field& field) {
  std::string name = environment_name(field.key).substr(std::string_view("SFTRUN_").size());
  name.replace(name.find("__"), 2, "_");
  return name;
}

std::string row(const Field& field, bool from_make) {
  std::string line =
      fmt::format("| `{}` | {} | {} | {} Example: `{}` |", field.leaf(), cell(takes_text(field)),
                  cell(default_text(field)), cell(field.help), cell(field.example));
  if (from_make) line += fmt::format(" `{}` |", make_variable(field));
  return line + "\n";
}

}  // namespace

std::string reference_markdown() {
  RunConfig defaults;
  const Binding binding = bind(defaults);
  std::string text(kIntroduction);
  for (const Section& section : binding.sections) {
    const bool from_make = section.name == "train" || section.name == "model";
    text += fmt::format(
        "## `{}`\n{}\n\n| key | takes | default | meaning |{}\n|---|---|---|---|{}\n", section.name,
        section.help, from_make ? " make |" : "", from_make ? "---|" : "");
    for (const Field& field : binding.fields) {
      if (field.section() == section.name) text += row(field, from_make);
    }
    text += "\n";
  }
  return text + std::string(kEnd);
}

}  // namespace sftrun::config
