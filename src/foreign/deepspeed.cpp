#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "conversion.h"
#include "offload.h"

/// Values of DeepSpeed's JSON that depend on others, or have another form (tools/deepspeed.yaml).
namespace sftrun::foreign {

extern const std::string_view kDeepSpeedTable;  // its table

namespace {

constexpr std::string_view kSums = "gradients are summed in fp32, without scaling before";
constexpr std::string_view kLogs =
    "metrics.jsonl and TensorBoard files hold every step; run.json has times, memory and "
    "collectives";

void deepspeed_betas(Conversion& conversion, const SourceKey& key) {
  const std::vector<Value>& betas = key.value.items;
  if (key.value.kind == Value::Kind::kScalar && key.value.text == "auto")
    return conversion.note_auto(key);
  if (betas.size() != 2)
    return conversion.refuse(
        key, fmt::format("`{}` is {}; it takes two numbers", key.name, describe(key.value)),
        "write, for example, [0.9, 0.999]");
  conversion.set(key, "train.adam_beta1", betas[0]);
  conversion.set(key, "train.adam_beta2", betas[1]);
}

/// DeepSpeed's Adam is AdamW unless this is false.
void deepspeed_adam_w_mode(Conversion& conversion, const SourceKey& key) {
  if (parse_bool(key.value.text) != false)
    return conversion.note_no_meaning(key, "weight decay is always decoupled from the gradient");
  conversion.refuse(key,
                    fmt::format("`{}` is false, and weight decay inside the gradient is not "
                                "supported",
                                key.name),
                    "remove it, or set it to true (AdamW)");
}

void deepspeed_stage(Conversion& conversion, const SourceKey& key) {
  constexpr std::array<std::string_view, 4> kStrategies = {"ddp", "zero1", "zero2", "zero3"};
  const auto stage = conversion.count_of(key.name, 0);
  if (!stage) return;
  if (*stage >= static_cast<int64_t>(kStrategies.size()))
    return conversion.refuse(key, fmt::format("`{}` is {}", key.name, *stage),
                             "write 0, 1, 2 or 3");
  if (*stage < 3)
    return conversion.set(key, "parallel.strategy", kStrategies[static_cast<size_t>(*stage)]);
  for (const char* group :
       {"zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"}) {
    const auto size = conversion.find(group);
    if (size && parse_int(size->value.text).value_or(0) > 1)
      return conversion.set(key, "parallel.strategy", "hybrid");
  }
  conversion.set(key, "parallel.strategy", kStrategies.back());
}

/// Weights are gathered within groups of this many processes.
void deepspeed_group(Conversion& conversion, const SourceKey& key) {
  const auto size = parse_int(key.value.text);
  if (!size || *size < -1)
    return conversion.refuse(key, fmt::format("`{}` is {}", key.name, describe(key.value)),
                             "write the number of processes that share one copy of the weights");
  if (*size <= 1) return;
  const auto stage = conversion.find("zero_optimization.stage");
  if (!stage || stage->value.text != "3") {
    return stage ? conversion.refuse(key, *stage,
                                     fmt::format("`{}` is {}, but the stage is {}", key.name, *size,
                                                 stage->value.text),
                                     "set zero_optimization.stage to 3, or remove it")
                 : conversion.refuse(key, fmt::format("`{}` needs stage 3", key.name),
                                     "set zero_optimization.stage to 3, or remove it");
  }
  conversion.set(key, "parallel.dp_shard", key.value);
  if (key.name.ends_with("hpz_partition_size")) {
    conversion.note_lost(
        key,
        "hybrid divides optimizer state over the group, too, not over all processes: "
        "more memory than ZeRO++, the same losses");
  }
}

/// A number of parts, of which DeepSpeed calls 0 and 1 "off".
void deepspeed_parts(Conversion& conversion, const SourceKey& key) {
  const auto parts = conversion.count_of(key.name, 0);
  if (parts.value_or(1) <= 1) return;
  const char* field = key.name == "pipeline.stages"          ? "parallel.pp"
                      : key.name == "sequence_parallel_size" ? "parallel.cp"
                                                             : "parallel.tp";
  conversion.set(key, field, key.value);
}

void deepspeed_steps_per_print(Conversion& conversion, const SourceKey& key) {
  const auto steps = parse_int(key.value.text);
  if (!steps || *steps < 1) return conversion.note_no_meaning(key, std::string(kLogs));
  conversion.set(key, "train.logging_steps", key.value, /*is_firm=*/false);
}

void deepspeed_warmup_type(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "linear") return conversion.note_no_meaning(key, "warm-up is linear");
  conversion.note_lost(key, "warm-up is linear here");
}

/// A share or a rate that is nearly zero.
void deepspeed_lowest_rate(Conversion& conversion, const SourceKey& key) {
  constexpr double kNearlyZero = 1e-3;
  const auto rate = parse_double(key.value.text);
  if (key.value.text == "auto") return conversion.note_auto(key);
  if (rate && *rate <= kNearlyZero)
    return conversion.note_no_meaning(key, "learning rates begin and end at 0");
  conversion.note_lost(key, "learning rates begin and end at 0");
}

void deepspeed_communication_type(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "fp32") return conversion.note_no_meaning(key, std::string(kSums));
  conversion.note_lost(key,
                       "the strategies of ZeRO sum gradients in fp32; with ddp, "
                       "`train.ddp_comm_hook: bf16` sends them in bf16");
}

void deepspeed_tensorboard(Conversion& conversion, const SourceKey& key) {
  conversion.set(key, "output.tensorboard", key.value, /*is_firm=*/false);
}

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes.
void deepspeed_check_batches(Conversion& conversion) {
  const auto total = conversion.count_of("train_batch_size", 1);
  const auto micro = conversion.count_of("train_micro_batch_size_per_gpu", 1);
  const auto accum = conversion.count_of("gradient_accumulation_steps", 1);
  const int64_t product = micro.value_or(1) * accum.value_or(1);
  if (!total || *total % product == 0) return;
  const auto total_key = conversion.find("train_batch_size");
  const auto other =
      conversion.find(micro ? "train_micro_batch_size_per_gpu" : "gradient_accumulation_steps");
  std::string factors;
  if (micro) factors = fmt::format("train_micro_batch_size_per_gpu {}", *micro);
  if (accum) factors += fmt::format("{}gradient_accumulation_steps {}", micro ? " * " : "", *accum);
  conversion.refuse(*total_key, *other,
                    fmt::format("`train_batch_size` {} is not a multiple of {}{}", *total, factors,
                                micro && accum ? fmt::format(" = {}", product) : ""),
                    "train_batch_size is train_micro_batch_size_per_gpu * "
                    "gradient_accumulation_steps * processes; set one of the three to auto");
}

void deepspeed_finish(Conversion& conversion) {
  const auto is_on = [&](const char* name) { return parse_bool(conversion.text_of(name)) == true; };
  for (const char* bf16 : {"bf16.enabled", "bfloat16.enabled"}) {
    if (!is_on(bf16) || !is_on("fp16.enabled")) continue;
    conversion.refuse(*conversion.find(bf16), *conversion.find("fp16.enabled"),
                      fmt::format("`{}` and `fp16.enabled` are both true", bf16),
                      "keep one of them");
  }
  const auto schedule = conversion.find("scheduler.type");
  if (schedule && schedule->value.text != "auto" &&
      !conversion.find("scheduler.params.warmup_type"))
    conversion.note_lost(
        *schedule,
        "DeepSpeed's warm-up is logarithmic unless scheduler.params.warmup_type is "
        "linear; it is linear here");
  deepspeed_check_batches(conversion);
}

constexpr auto kDeepSpeedConverters = std::to_array<Converter>({
    {"betas", deepspeed_betas},
    {"adam_w_mode", deepspeed_adam_w_mode},
    {"lowest_rate", deepspeed_lowest_rate},
    {"warmup_type", deepspeed_warmup_type},
    {"communication_type", deepspeed_communication_type},
    {"stage", deepspeed_stage},
    {"group", deepspeed_group},
    {"parts", deepspeed_parts},
    {"steps_per_print", deepspeed_steps_per_print},
    {"tensorboard", deepspeed_tensorboard},
});

}  // namespace

const ToolCode& deepspeed() {
  static const ToolCode code{.tool = Tool::kDeepSpeed,
                             .name = "DeepSpeed",
                             .word = "deepspeed",
                             .table = kDeepSpeedTable,
                             .converters = kDeepSpeedConverters,
                             .finish = deepspeed_finish,
                             .is_strict = true};
  return code;
}

}  // namespace sftrun::foreign
