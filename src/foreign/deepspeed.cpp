#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "offload.h"
#include "reading.h"
#include "sftrun/config/optimizers.h"

/// DeepSpeed's JSON: https://www.deepspeed.ai/docs/config-json/
namespace sftrun::foreign {
namespace {

constexpr std::string_view kBuckets =
    "sizes and order of collectives follow from the units of the model (docs/parallelism.md)";
constexpr std::string_view kStage3 =
    "units are gathered one ahead and released after use (docs/parallelism.md)";
constexpr std::string_view kLossScale = "the loss scale of fp16 is adapted by itself";
constexpr std::string_view kSums = "gradients are summed in fp32, without scaling before";
constexpr std::string_view kLogs =
    "metrics.jsonl and TensorBoard files hold every step; run.json has times, memory and "
    "collectives";
constexpr std::string_view kTrackers =
    "a run writes metrics.jsonl and TensorBoard files; docs/experiment-trackers.md shows how "
    "trackers read them";
constexpr std::string_view kCheckpoints =
    "a checkpoint can be resumed under any strategy; results are in whole tensors";
constexpr std::string_view kChecked = "there is one implementation, which is tested";
constexpr std::string_view kRecompute =
    "`train.gradient_checkpointing` recomputes layers; it has no further settings";
constexpr std::string_view kOffloadSettings = "`parallel.offload` has no further settings";
constexpr std::string_view kRemove = "remove it, or set enabled to false";
constexpr std::string_view kRemoveKey = "remove it";
constexpr std::string_view kHalf = "set it to false, and bf16.enabled or fp16.enabled to true";

/// In alphabetical order.
constexpr auto kOptimizerTypes = [] {
  std::array<WordPair, count_names(&OptimizerInfo::deepspeed)> pairs{};
  auto* end = pairs.begin();
  for (const OptimizerInfo& info : kOptimizers)
    for (const std::string_view type : info.deepspeed) *end++ = {type, info.name};
  std::sort(pairs.begin(), pairs.end(),
            [](const WordPair& a, const WordPair& b) { return a.theirs < b.theirs; });
  return pairs;
}();
constexpr auto kSchedulerTypes = std::to_array<WordPair>({{"WarmupLR", "constant_with_warmup"},
                                                          {"WarmupDecayLR", "linear"},
                                                          {"WarmupCosineLR", "cosine"}});

void deepspeed_betas(Reading& reading, const SourceKey& key) {
  const std::vector<Value>& betas = key.value.items;
  if (key.value.kind == Value::Kind::kScalar && key.value.text == "auto")
    return reading.note_auto(key);
  if (betas.size() != 2)
    return reading.refuse(
        key, fmt::format("`{}` is {}; it takes two numbers", key.name, describe(key.value)),
        "write, for example, [0.9, 0.999]");
  reading.set(key, "train.adam_beta1", betas[0]);
  reading.set(key, "train.adam_beta2", betas[1]);
}

/// DeepSpeed's Adam is AdamW unless this is false.
void deepspeed_adam_w_mode(Reading& reading, const SourceKey& key) {
  if (parse_bool(key.value.text) != false)
    return reading.note_no_meaning(key, "weight decay is always decoupled from the gradient");
  reading.refuse(key,
                 fmt::format("`{}` is false, and weight decay inside the gradient is not "
                             "supported",
                             key.name),
                 "remove it, or set it to true (AdamW)");
}

void deepspeed_stage(Reading& reading, const SourceKey& key) {
  constexpr std::array<std::string_view, 4> kStrategies = {"ddp", "zero1", "zero2", "zero3"};
  const auto stage = reading.count_of(key.name, 0);
  if (!stage) return;
  if (*stage >= static_cast<int64_t>(kStrategies.size()))
    return reading.refuse(key, fmt::format("`{}` is {}", key.name, *stage), "write 0, 1, 2 or 3");
  if (*stage < 3)
    return reading.set(key, "parallel.strategy", kStrategies[static_cast<size_t>(*stage)]);
  for (const char* group :
       {"zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"}) {
    const auto size = reading.find(group);
    if (size && parse_int(size->value.text).value_or(0) > 1)
      return reading.set(key, "parallel.strategy", "hybrid");
  }
  reading.set(key, "parallel.strategy", kStrategies.back());
}

/// Weights are gathered within groups of this many processes.
void deepspeed_group(Reading& reading, const SourceKey& key) {
  const auto size = parse_int(key.value.text);
  if (!size || *size < -1)
    return reading.refuse(key, fmt::format("`{}` is {}", key.name, describe(key.value)),
                          "write the number of processes that share one copy of the weights");
  if (*size <= 1) return;
  const auto stage = reading.find("zero_optimization.stage");
  if (!stage || stage->value.text != "3") {
    return stage ? reading.refuse(key, *stage,
                                  fmt::format("`{}` is {}, but the stage is {}", key.name, *size,
                                              stage->value.text),
                                  "set zero_optimization.stage to 3, or remove it")
                 : reading.refuse(key, fmt::format("`{}` needs stage 3", key.name),
                                  "set zero_optimization.stage to 3, or remove it");
  }
  reading.set(key, "parallel.dp_shard", key.value);
  if (key.name.ends_with("hpz_partition_size")) {
    reading.note_lost(key,
                      "hybrid divides optimizer state over the group, too, not over all processes: "
                      "more memory than ZeRO++, the same losses");
  }
}

void deepspeed_steps_per_print(Reading& reading, const SourceKey& key) {
  const auto steps = parse_int(key.value.text);
  if (!steps || *steps < 1) return reading.note_no_meaning(key, std::string(kLogs));
  reading.set(key, "train.logging_steps", key.value, /*is_firm=*/false);
}

void deepspeed_warmup_type(Reading& reading, const SourceKey& key) {
  if (key.value.text == "linear") return reading.note_no_meaning(key, "warm-up is linear");
  reading.note_lost(key, "warm-up is linear here");
}

/// A share or a rate that is nearly zero.
void deepspeed_lowest_rate(Reading& reading, const SourceKey& key) {
  constexpr double kNearlyZero = 1e-3;
  const auto rate = parse_double(key.value.text);
  if (key.value.text == "auto") return reading.note_auto(key);
  if (rate && *rate <= kNearlyZero)
    return reading.note_no_meaning(key, "learning rates begin and end at 0");
  reading.note_lost(key, "learning rates begin and end at 0");
}

void deepspeed_communication_type(Reading& reading, const SourceKey& key) {
  if (key.value.text == "fp32") return reading.note_no_meaning(key, std::string(kSums));
  reading.note_lost(key,
                    "the strategies of ZeRO sum gradients in fp32; with ddp, "
                    "`train.ddp_comm_hook: bf16` sends them in bf16");
}

void deepspeed_tensorboard(Reading& reading, const SourceKey& key) {
  reading.set(key, "output.tensorboard", key.value, /*is_firm=*/false);
}

constexpr auto kDeepSpeedRules = std::to_array<ImportRule>({
    // ---- Batches
    field("train_batch_size", "train.global_batch_size"),
    field("train_micro_batch_size_per_gpu", "train.batch_size"),
    field("gradient_accumulation_steps", "train.grad_accum"),

    // ---- Optimizer and schedule
    words("optimizer.type", "train.optimizer", kOptimizerTypes),
    field("optimizer.params.lr", "train.learning_rate"),
    special("optimizer.params.betas", deepspeed_betas),
    field("optimizer.params.eps", "train.adam_epsilon"),
    field("optimizer.params.weight_decay", "train.weight_decay"),
    field("optimizer.params.momentum", "train.momentum"),
    field("optimizer.params.nesterov", "train.nesterov"),
    special("optimizer.params.adam_w_mode", deepspeed_adam_w_mode),
    nothing("optimizer.params.torch_adam", kChecked),
    nothing("optimizer.params.fused", kChecked),
    nothing("optimizer.params.bias_correction", "moments are always corrected for bias"),
    refused("optimizer.params.amsgrad", kRemoveKey),
    nothing("optimizer.legacy_fusion", kChecked),
    words("scheduler.type", "train.scheduler", kSchedulerTypes),
    special("scheduler.params.warmup_min_lr", deepspeed_lowest_rate),
    field("scheduler.params.warmup_max_lr", "train.learning_rate"),
    field("scheduler.params.warmup_num_steps", "train.warmup_steps"),
    field("scheduler.params.total_num_steps", "train.max_steps"),
    special("scheduler.params.warmup_type", deepspeed_warmup_type),
    special("scheduler.params.warmup_min_ratio", deepspeed_lowest_rate),
    special("scheduler.params.cos_min_ratio", deepspeed_lowest_rate),
    nothing("scheduler.params.last_batch_iteration", "a run resumes from its own checkpoints"),

    // ---- Numbers
    field("fp16.enabled", "train.fp16"),
    lost("fp16.loss_scale", kLossScale),
    nothing("fp16.*", kLossScale),
    field("bf16.enabled", "train.bf16"),
    field("bfloat16.enabled", "train.bf16"),
    nothing("bf16.*", "trained weights and their gradients are kept in fp32"),
    refused("amp.enabled", kHalf),
    nothing("amp.*", "of NVIDIA's Apex"),
    refused("torch_autocast.enabled", kHalf),
    nothing("torch_autocast.*", "of PyTorch's autocast"),
    field("gradient_clipping", "train.max_grad_norm"),
    special("communication_data_type", deepspeed_communication_type),
    special("seq_parallel_communication_data_type", deepspeed_communication_type),
    nothing("prescale_gradients", kSums),
    nothing("gradient_predivide_factor", kSums),
    nothing("sparse_gradients", kSums),
    nothing("data_types.*", kSums),

    // ---- ZeRO
    special("zero_optimization.stage", deepspeed_stage),
    special("zero_optimization.zero_hpz_partition_size", deepspeed_group),
    special("zero_optimization.mics_shard_size", deepspeed_group),
    nothing("zero_optimization.mics_hierarchical_params_gather", kStage3),
    offload_optimizer("zero_optimization.offload_optimizer.device"),
    offload_weights("zero_optimization.offload_param.device"),
    nothing("zero_optimization.offload_optimizer.*", kOffloadSettings),
    nothing("zero_optimization.offload_param.*", kOffloadSettings),
    offload_optimizer("zero_optimization.cpu_offload"),
    offload_weights("zero_optimization.cpu_offload_params"),
    nothing("zero_optimization.cpu_offload_use_pin_memory", kOffloadSettings),
    refused("zero_optimization.zenflow", kRemoveKey),
    nothing("zero_optimization.allgather_partitions", kBuckets),
    nothing("zero_optimization.allgather_bucket_size", kBuckets),
    nothing("zero_optimization.overlap_comm", kBuckets),
    nothing("zero_optimization.reduce_scatter", kBuckets),
    nothing("zero_optimization.reduce_bucket_size", kBuckets),
    nothing("zero_optimization.contiguous_gradients", kBuckets),
    nothing("zero_optimization.use_multi_rank_bucket_allreduce", kBuckets),
    nothing("zero_optimization.round_robin_gradients", kBuckets),
    nothing("zero_optimization.sub_group_size", kBuckets),
    nothing("zero_optimization.grad_hooks", kBuckets),
    nothing("zero_optimization.stage3_prefetch_bucket_size", kStage3),
    nothing("zero_optimization.stage3_param_persistence_threshold", kStage3),
    nothing("zero_optimization.stage3_model_persistence_threshold", kStage3),
    nothing("zero_optimization.stage3_max_live_parameters", kStage3),
    nothing("zero_optimization.stage3_max_reuse_distance", kStage3),
    nothing("zero_optimization.stage3_module_granularity_threshold", kStage3),
    nothing("zero_optimization.stage3_use_all_reduce_for_fetch_params", kStage3),
    nothing("zero_optimization.stage3_allgather_sequential", kStage3),
    nothing("zero_optimization.module_granularity_threshold", kStage3),
    nothing("zero_optimization.stage3_gather_16bit_weights_on_model_save", kCheckpoints),
    nothing("zero_optimization.stage3_gather_fp16_weights_on_model_save", kCheckpoints),
    nothing("zero_optimization.elastic_checkpoint", kCheckpoints),
    nothing("zero_optimization.load_from_fp32_weights", kCheckpoints),
    nothing("zero_optimization.pipeline_loading_checkpoint", kCheckpoints),
    nothing("zero_optimization.ignore_unused_parameters",
            "parameters without a gradient are always allowed"),
    nothing("zero_optimization.legacy_stage1", kChecked),
    nothing("zero_optimization.memory_efficient_linear", kChecked),
    nothing("zero_optimization.override_module_apply", kChecked),
    nothing("zero_optimization.log_trace_cache_warnings", kLogs),
    refused("zero_optimization.zero_quantized_weights",
            "set it to false; a base in 4 bits (`tuning.mode: qlora`) is gathered in 4 bits"),
    refused("zero_optimization.zero_quantized_nontrainable_weights",
            "set it to false; a base in 4 bits (`tuning.mode: qlora`) is gathered in 4 bits"),
    refused("zero_optimization.zero_quantized_gradients",
            "set it to false; gradients are summed in fp32"),
    refused("zero_optimization.zeropp_loco_param", kRemoveKey),
    nothing("zero_allow_untested_optimizer", kChecked),
    nothing("zero_force_ds_cpu_optimizer", kOffloadSettings),
    nothing("aio.*", "nothing is kept on disks"),

    // ---- Memory
    offload_activations("activation_checkpointing.cpu_checkpointing"),
    nothing("activation_checkpointing.*", kRecompute),

    // ---- Logs
    special("steps_per_print", deepspeed_steps_per_print),
    special("tensorboard.enabled", deepspeed_tensorboard),
    nothing("tensorboard.*", "event files are in the run directory"),
    lost("wandb.enabled", kTrackers),
    nothing("wandb.*", kTrackers),
    lost("comet.enabled", kTrackers),
    nothing("comet.*", kTrackers),
    nothing("csv_monitor.*", kLogs),
    nothing("wall_clock_breakdown", kLogs),
    nothing("memory_breakdown", kLogs),
    nothing("dump_state", kLogs),
    nothing("flops_profiler.*", kLogs),
    nothing("comms_logger.*", kLogs),

    // ---- Other features
    nothing("checkpoint.*", kCheckpoints),
    nothing("nebula.*", kCheckpoints),
    nothing("disable_allgather", kBuckets),
    nothing("communication_fp32_grad_accum", kSums),
    nothing("compile.*", "there is nothing to compile"),
    nothing("graph_harvesting", "`train.cuda_graphs` captures steps in CUDA graphs"),
    lost("dataloader_drop_last", "the last batch of an epoch may be smaller, and is trained on"),
    refused("elasticity.enabled", kRemove),
    nothing("elasticity.*", "elastic training is off"),
    refused("autotuning.enabled",
            "set enabled to false; `train.batch_size: auto` estimates what fits"),
    nothing("autotuning.*", "`train.batch_size: auto` estimates what fits"),
    refused("curriculum_learning.enabled", kRemove),
    nothing("curriculum_learning.*", "curriculum learning is off"),
    refused("data_efficiency.enabled", kRemove),
    nothing("data_efficiency.*", "DeepSpeed's data sampling is off"),
    refused("progressive_layer_drop.enabled", kRemove),
    nothing("progressive_layer_drop.*", "progressive layer dropping is off"),
    refused("eigenvalue.enabled", kRemove),
    nothing("eigenvalue.*", "it is off"),
    refused("hybrid_engine.enabled", kRemove),
    nothing("hybrid_engine.*", "it is off"),
    refused("sparse_attention", kRemoveKey),
    refused("compression_training", kRemoveKey),
    refused("quantize_training.enabled", kRemove),
    nothing("quantize_training.*", "it is off"),
    refused("pipeline",
            "remove it; `parallel.strategy: pipeline` with `parallel.pp` in the run divides the "
            "layers into stages"),
    refused("tensor_parallel.autotp_size",
            "set it to 1; `parallel.strategy: tensor` with `parallel.tp` in the run divides the "
            "matrices, and fsdp the model",
            "1"),
    nothing("tensor_parallel.*", "tensor parallelism is off"),
    refused("sequence_parallel_size", "set it to 1", "1"),
});

constexpr auto kDeepSpeedSigns = std::to_array<std::string_view>(
    {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "steps_per_print",
     "wall_clock_breakdown", "zero_allow_untested_optimizer", "bfloat16",
     "communication_data_type"});

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes.
void deepspeed_check_batches(Reading& reading) {
  const auto total = reading.count_of("train_batch_size", 1);
  const auto micro = reading.count_of("train_micro_batch_size_per_gpu", 1);
  const auto accum = reading.count_of("gradient_accumulation_steps", 1);
  const int64_t product = micro.value_or(1) * accum.value_or(1);
  if (!total || *total % product == 0) return;
  const auto total_key = reading.find("train_batch_size");
  const auto other =
      reading.find(micro ? "train_micro_batch_size_per_gpu" : "gradient_accumulation_steps");
  std::string factors;
  if (micro) factors = fmt::format("train_micro_batch_size_per_gpu {}", *micro);
  if (accum) factors += fmt::format("{}gradient_accumulation_steps {}", micro ? " * " : "", *accum);
  reading.refuse(*total_key, *other,
                 fmt::format("`train_batch_size` {} is not a multiple of {}{}", *total, factors,
                             micro && accum ? fmt::format(" = {}", product) : ""),
                 "train_batch_size is train_micro_batch_size_per_gpu * "
                 "gradient_accumulation_steps * processes; set one of the three to auto");
}

void deepspeed_finish(Reading& reading) {
  const auto is_on = [&](const char* name) { return parse_bool(reading.text_of(name)) == true; };
  for (const char* bf16 : {"bf16.enabled", "bfloat16.enabled"}) {
    if (!is_on(bf16) || !is_on("fp16.enabled")) continue;
    reading.refuse(*reading.find(bf16), *reading.find("fp16.enabled"),
                   fmt::format("`{}` and `fp16.enabled` are both true", bf16), "keep one of them");
  }
  const auto schedule = reading.find("scheduler.type");
  if (schedule && schedule->value.text != "auto" && !reading.find("scheduler.params.warmup_type"))
    reading.note_lost(*schedule,
                      "DeepSpeed's warm-up is logarithmic unless scheduler.params.warmup_type is "
                      "linear; it is linear here");
  deepspeed_check_batches(reading);
}

}  // namespace

const ImportTable& deepspeed_table() {
  static constexpr ImportTable table{.tool = Tool::kDeepSpeed,
                                     .name = "DeepSpeed",
                                     .word = "deepspeed",
                                     .rules = kDeepSpeedRules,
                                     .signs = kDeepSpeedSigns,
                                     .finish = deepspeed_finish,
                                     .is_strict = true};
  return table;
}

}  // namespace sftrun::foreign
