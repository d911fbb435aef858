#include <fmt/format.h>

#include <algorithm>

#include "layers.h"
#include "sftrun/config/binding.h"
#include "sftrun/config/yaml_text.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

One YAML file describes a run. This page lists every key; `sftrun config reference` prints it, `sftrun config schema` prints a
JSON Schema for editors, `sftrun config check --config run.yaml` validates a file, and `sftrun config show --config run.yaml` prints
the complete configuration with defaults and automatic values.

`sftrun config init` asks a few questions and writes a file with comments. The smallest valid file:
```yaml
model:
  name: models/SmolLM2-135M-Instruct   # a directory in Hugging Face layout or a .gguf file
data:
  train: data/train.jsonl              # {"messages": […]}, {"prompt", "completion"}, Alpaca or {"text"} records; docs/data.md
```

## Where values come from
A value is taken from the first of these sources that sets the key. A run prints all overrides when it starts.

1. the command line: `sftrun train --config run.yaml train.batch_size=4 'tuning.lora.target_modules=[q_proj, v_proj]'`
2. the environment: `SFTRUN_TRAIN__BATCH_SIZE=4` (two underscores between section and key)
3. the run's YAML
4. files of Accelerate and DeepSpeed that `parallel.accelerate` and `parallel.deepspeed` (or the flags `--accelerate-config` and
   `--deepspeed`) name. A key of the run's YAML with another value than theirs is an error; `auto` in either takes the other's value
   (docs/coming-from.md)
5. the machine file: `SFTRUN_MACHINE_CONFIG`, or `sftrun/machine.yaml` in `XDG_CONFIG_HOME` or `~/.config`, with the keys
   `devices` (2, [0, 2, 3], [1], auto or cpu; a list has numbers of GPUs), `dtype`, `strategy`, `nodes`, `node_rank` and `master` (host or host:port).
   `sftrun config init --machine` asks for them and writes the file
6. the default

Values are always YAML; an empty value or `null` means the default, for a section
(`train.rollouts=null`) the defaults of all its keys. `yes`, `no`, `on` and `off` are booleans, as in YAML 1.1. The file is
UTF-8, YAML or JSON. Paths of inputs are relative to the current directory, or else to the directory of the YAML file; `output.dir` and
`data.cache_dir` are relative to the current directory; `~` is the home directory. For
a path `none`, `None`, `null` and `~` mean that there is none (a file of such a name is `./none`): no validation data, no cache, the model's
own template, the default run directory. The order of a map's keys is kept. Unknown keys are errors. For keys of transformers, TRL, PEFT,
bitsandbytes, Axolotl, LLaMA-Factory, torchtune, Unsloth and Accelerate the error names the equivalent key, or the reason to remove it; for
other keys it suggests the most similar one. `sftrun config import FILE` translates whole files of
Accelerate, DeepSpeed, Axolotl, LLaMA-Factory, TRL and torchtune. The first twenty problems of a file are reported together, with their number.

With `make`, the keys of `train` and `model` are variables in capitals: `make train-distributed CONFIG=run.yaml TRAIN_BATCH_SIZE=1
TRAIN_GRAD_ACCUM=32 MODEL_MAX_SEQ_LEN=1024` means `train.batch_size=1 train.grad_accum=32 model.max_seq_len=1024`. `make train-deepspeed` also passes
`DEEPSPEED_CONFIG=` on as `--deepspeed`.

)";

constexpr std::string_view kEnd = R"(## What `auto` becomes
`sftrun train --dry-run` prints every value that the run will use. `sftrun config show` does the same if the model is a local file or
directory. `config.resolved.yaml` in the run directory has the values that were used.

| key | `auto` becomes |
|---|---|
| `model.dtype` | `bf16` on GPUs and on CPUs with AVX512-BF16, else `fp32` |
| `tuning.quant` | the format of the model's files if they are quantised: `gguf`, `mxfp4`, or `stored` (bitsandbytes, FP8); else `nf4` for mode qlora, `none` otherwise |
| `parallel.strategy` | `single` on one process; on several `ddp` if the run fits into a device by the estimate, else the first of `zero1`, `zero2` (full training), `hybrid` (several machines) and `fsdp` that does |

Both commands also print optimizer steps and tokens per epoch: exact numbers if all records were read (data sets of fewer than 100 records,
and those whose number of tokens decides batch sizes, see below), else estimates from the first 100 records of each data set. Batch sizes that
only the run finds, because it reads more of its data, are shown as `auto`. They estimate a duration only if `output.dir` has the
metrics of an earlier run, from its tokens per second, without evaluation.

## Batch sizes
`batch_size * grad_accum * devices = global_batch_size`. A value that is `auto` follows from the others. If all three are
`auto`, the target is 32 per step, with the largest micro-batch that fits a device (docs/memory.md), divides the target over the devices and leaves at
least 4 accumulation steps. With fewer than 4 per device, it is the largest that fits and divides them.
With `parallel.strategy: pipeline` a pipeline counts as one device here, and there are at least 4 accumulation steps for each of its stages.
A step never has more than an epoch: a larger batch is one step of all sequences. A warning says so if a size was set.

The order of examples, and so the run, depends only on `global_batch_size`, not on how it is split. (The load-balancing loss of mixtures of
experts is computed per micro-batch, so it does depend on the split. `train.router_aux_loss_coef` multiplies the mean over micro-batches.
transformers' Trainer adds the full loss of every micro-batch, which is `grad_accum` times as much.)

Small data sets: an epoch should have 50 steps. If `global_batch_size` and `grad_accum` are `auto` and 32 packed sequences
per step give fewer steps, a step gets fewer, down to one per device. If that is not enough and `data.bin_tokens` is `auto`, packed sequences get
fewer tokens, down to 256; a longer example then has one of its own. A resumed run keeps its values. With `train.max_steps` or
`data.streaming` nothing is changed.

## Settings without an effect
A valid setting that has no effect in a run gives a warning with the reason: `train.beta` with objective `sft`, `parallel.offload.base`
on a CPU, `train.generation_batch_size` without `train.predict_with_generate`. Defaults give none. `sftrun config check` knows those that follow
from the configuration alone; `train`, its dry run, `config show` and `memory-check` also those that follow from the devices. Sizes of
axes (`parallel.pp`, `dp_shard`, `dp_replicate`, `tp`) together with a strategy of one process are an error.

## Accepted without an effect
These keys of other trainers control how an evaluation stores logits: `train.eval_accumulation_steps`, `train.eval_do_concat_batches`,
`train.batch_eval_metrics` and `train.eval_use_gather_object`. sftrun stores no logits, only sums. Each of them gives a warning.

## Other spellings
`train.early_stopping: {patience: 3, threshold: 0.01}` is the same as `early_stopping_patience` and `early_stopping_threshold`,
in a file and as an override: `'train.early_stopping={patience: 3}'`.
)";

/// A table cell, with bars escaped.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.insert(at, "\\");
  return text;
}

std::string default_text(const Field& field) {
  if (!field.limits.unset.empty()) return field.limits.unset;
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
