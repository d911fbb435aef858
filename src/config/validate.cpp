#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>

#include "choices.h"
#include "layers.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/optimizer_state.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::config {
namespace {

/// Keys of data.fields.
constexpr std::array kRecordFields = {
    "messages", "role",   "content", "prompt", "completion",    "instruction", "input",
    "output",   "system", "text",    "tools",  "conversations", "chosen",      "rejected"};

constexpr int64_t kMostRank = 65536;

struct OptimizerSetting {
  std::string name;  ///< without "train."
  std::vector<Optimizer> readers;
};

/// The settings of `train` that only some optimizers read.
const std::vector<OptimizerSetting>& settings_of_optimizers() {
  using enum Optimizer;
  static const std::vector<OptimizerSetting> settings = {
      {"adam_beta1", {kAdamW, kAdamW8bit, kPagedAdamW, kPagedAdamW8bit, kLion, kMuon}},
      {"adam_beta2", {kAdamW, kAdamW8bit, kPagedAdamW, kPagedAdamW8bit, kLion, kMuon}},
      {"adam_epsilon", {kAdamW, kAdamW8bit, kPagedAdamW, kPagedAdamW8bit, kMuon}},
      {"momentum", {kSgd, kMuon}},
      {"nesterov", {kSgd, kMuon}},
      {"muon_lr", {kMuon}},
  };
  return settings;
}

/// "muon reads", "sgd and muon read"
std::string who_read(const std::vector<Optimizer>& readers) {
  std::string text(word_of(readers.front()));
  for (size_t i = 1; i < readers.size(); ++i)
    text += fmt::format("{}{}", i + 1 == readers.size() ? " and " : ", ", word_of(readers[i]));
  return text + (readers.size() == 1 ? " reads" : " read");
}

/// Checks relations between fields. Changes nothing.
class RelationCheck {
 public:
  RelationCheck(const LoadedConfig& loaded, Problems& problems, std::vector<std::string>& warnings)
      : loaded_(loaded), config_(loaded.config), problems_(problems), warnings_(warnings) {}

  void require_names() {
    if (config_.model.name.empty()) {
      report("`model.name` is missing", {},
             "add `name:` below `model:`: a directory in Hugging Face layout or a .gguf file");
    }
    if (config_.data.train.empty()) {
      report("`data.train` is missing", {},
             "add `train:` below `data:`: a file, as JSON lines, CSV or Parquet");
    }
  }

  void check_dtype() {
    const auto& [bf16, fp16] = std::pair(config_.train.bf16, config_.train.fp16);
    if (bf16 == true && fp16 == true) {
      report("`train.bf16` and `train.fp16` are both true", {"train.bf16", "train.fp16"},
             "keep one of them");
      return;
    }
    check_half("train.bf16", bf16, DTypeChoice::kBf16, "bf16");
    check_half("train.fp16", fp16, DTypeChoice::kFp16, "fp16");
  }

  void check_tuning() {
    const TuningConfig& tuning = config_.tuning;
    const bool lora = tuning.trains_adapter();
    check_quant(tuning);
    if (tuning.mode == TuningMode::kPartial && tuning.trainable.empty()) {
      report("`tuning.mode` is partial, but `tuning.trainable` names no parameters",
             {"tuning.mode"},
             "add `trainable:` below `tuning:`, for example ['layers\\.29\\.', 'norm']");
    }
    for (const std::string& pattern : tuning.trainable)
      check_expression("tuning.trainable", pattern);
    if (tuning.mode != TuningMode::kPartial && !tuning.trainable.empty()) {
      report("`tuning.trainable` is for mode partial only", {"tuning.trainable", "tuning.mode"},
             "set tuning.mode to partial, or remove trainable");
    }
    if (!lora && set("tuning.lora.init_from") && !tuning.lora.init_from.empty()) {
      report("`tuning.lora.init_from` is for mode lora only",
             {"tuning.lora.init_from", "tuning.mode"},
             "set tuning.mode to lora, or merge the adapter first (sftrun merge)");
    }
    if (!lora && config_.train.loraplus_lr_ratio) {
      report("`train.loraplus_lr_ratio` is for modes lora and qlora only",
             {"train.loraplus_lr_ratio", "tuning.mode"}, "remove it, or set tuning.mode to lora");
    }
    if (!lora) return warn_of_idle_lora();
    check_targets(tuning.lora);
    check_variants(tuning.lora);
    check_pattern(tuning.lora.rank_pattern, "tuning.lora.rank_pattern", /*whole=*/true);
    check_pattern(tuning.lora.alpha_pattern, "tuning.lora.alpha_pattern", /*whole=*/false);
  }

  void check_data() {
    const DataConfig& data = config_.data;
    if (!data.val.empty() && data.val_split > 0) {
      report("`data.val` and `data.val_split` are both set", {"data.val", "data.val_split"},
             "keep one of them");
    }
    if (data.val_split > 1 &&
        data.val_split != static_cast<double>(static_cast<int64_t>(data.val_split))) {
      report(fmt::format("`data.val_split` is {}; from 1 up it is a number of records",
                         data.val_split),
             {"data.val_split"}, "write a share below 1 or a whole number");
    }
    check_fields("data.fields", data.fields);
    for (const DataSource& source : data.train) check_fields("data.train", source.fields);
    for (const DataSource& source : data.val) check_fields("data.val", source.fields);
    if (data.group_by_length && data.packing) {
      report("`data.group_by_length` is only for runs without packing", {"data.group_by_length"},
             "set data.packing to false, or remove group_by_length");
    }
    if (data.bin_tokens.value && !data.packing)
      warn("data.bin_tokens has no effect without data.packing", "data.bin_tokens");
    if (data.bin_tokens.value.value_or(0) > config_.model.max_seq_len) {
      report(fmt::format("`data.bin_tokens` {} is more than `model.max_seq_len` {}",
                         *data.bin_tokens.value, config_.model.max_seq_len),
             {"data.bin_tokens", "model.max_seq_len"},
             "lower data.bin_tokens or raise model.max_seq_len; train.batch_size, too, gives more "
             "tokens per step");
    }
    if (data.streaming) check_streaming();
  }

  void check_objective() {
    const bool is_dpo = config_.train.objective == Objective::kDpo;
    check_formats(is_dpo);
    if (is_dpo) return check_dpo();
    if (config_.train.beta != TrainConfig{}.beta)
      warn("train.beta has no effect with train.objective sft", "train.beta");
  }

  /// Settings that the chosen optimizer does not read.
  void check_optimizer() {
    const TrainConfig& train = config_.train;
    // config.resolved.yaml sets every key: a default value is no reason to warn.
    const auto train_of = [](const RunConfig& config) { return to_json(config)["train"]; };
    const nlohmann::ordered_json mine = train_of(config_), defaults = train_of(RunConfig{});
    for (const auto& [name, readers] : settings_of_optimizers()) {
      const std::string key = "train." + name;
      const bool is_read =
          std::find(readers.begin(), readers.end(), train.optimizer) != readers.end();
      if (is_read || !set(key) || mine.at(name) == defaults.at(name)) continue;
      warn(fmt::format("{} has no effect with train.optimizer {}: only {} it", key,
                       word_of(train.optimizer), who_read(readers)),
           key);
    }
    if (train.optimizer == Optimizer::kSgd && train.resolved_nesterov() &&
        train.resolved_momentum() == 0) {
      report("`train.nesterov` needs momentum, and `train.momentum` is 0", {"train.nesterov"},
             "set train.momentum, for example to 0.9");
    }
  }

  void check_evaluation(bool needs_data) {
    const TrainConfig& train = config_.train;
    const bool has_val = !config_.data.val.empty() || config_.data.val_split > 0;
    const bool steps = train.eval_strategy == EvalStrategy::kSteps;
    if (steps && !train.eval_steps) {
      report("`train.eval_strategy` is steps, but `train.eval_steps` is not set",
             {"train.eval_strategy"}, "add, for example, eval_steps: 200");
    }
    const bool off =
        train.eval_strategy == EvalStrategy::kNo || train.eval_strategy == EvalStrategy::kEpoch;
    if (off && train.eval_steps) {
      warn("train.eval_steps has no effect unless train.eval_strategy is steps",
           "train.eval_steps");
    }
    if (has_val || !needs_data || train.eval_strategy == EvalStrategy::kNo) return;
    const char* asks = steps || train.eval_strategy == EvalStrategy::kEpoch ? "train.eval_strategy"
                       : train.eval_steps                                   ? "train.eval_steps"
                       : train.eval_on_start                                ? "train.eval_on_start"
                                                                            : nullptr;
    if (asks != nullptr) {
      report(fmt::format("`{}` requires validation data, but there is none", asks), {asks},
             "set data.val to a file or data.val_split to a share such as 0.05, or "
             "train.eval_strategy to no");
    }
  }

  /// Settings of evaluations, their answers, and the best of them.
  void check_answers_and_best(bool needs_data) {
    const TrainConfig& train = config_.train;
    if (train.predict_with_generate) check_answers();
    if (train.eval_token_accuracy) check_token_accuracy();
    const char* measures = train.predict_with_generate ? "train.predict_with_generate"
                           : train.eval_token_accuracy ? "train.eval_token_accuracy"
                                                       : nullptr;
    if (measures != nullptr && train.eval_strategy == EvalStrategy::kNo && !train.eval_on_start)
      warn(fmt::format("{} has no effect: train.eval_strategy is no", measures), measures);
    if (train.early_stopping_threshold > 0 && !train.early_stopping_patience) {
      warn("train.early_stopping_threshold has no effect without train.early_stopping_patience",
           "train.early_stopping_threshold");
    }
    const char* asks = train.early_stopping_patience          ? "train.early_stopping_patience"
                       : train.load_best_model_at_end         ? "train.load_best_model_at_end"
                       : !train.metric_for_best_model.empty() ? "train.metric_for_best_model"
                                                              : nullptr;
    if (asks != nullptr) check_best(asks);
    if (train.predict_with_generate) asks = "train.predict_with_generate";
    if (asks != nullptr && needs_data) require_evaluations(asks);
  }

  void check_callbacks() {
    const CallbacksConfig& callbacks = config_.callbacks;
    const std::vector<std::string> known = CallbacksConfig{}.events;
    for (const std::string& event : callbacks.events) {
      if (std::find(known.begin(), known.end(), event) != known.end()) continue;
      const std::string near = nearest(event, known);
      report(
          fmt::format("`callbacks.events` has the unknown event `{}`", excerpt(event)),
          {"callbacks.events"},
          near.empty() ? "events: " + join(known, ", ") : fmt::format("did you mean `{}`?", near));
    }
    if (parse_duration_s(callbacks.timeout).value_or(0) <= 0) {
      report(fmt::format("`callbacks.timeout` is `{}`; it takes a time such as 90s, 10m or 1h30m",
                         callbacks.timeout),
             {"callbacks.timeout"}, "write 1m, the default");
    }
    if (!callbacks.command.empty() && callbacks.events.empty())
      warn("callbacks.command is never started: callbacks.events is empty", "callbacks.events");
    if (callbacks.command.empty() && set("callbacks.events") && callbacks.events != known)
      warn("callbacks.events has no effect without callbacks.command", "callbacks.events");
  }

  void check_comm_hook() {
    if (config_.train.ddp_comm_hook == CommHook::kNone) return;
    const Strategy strategy = config_.parallel.strategy;
    const OffloadConfig& offload = config_.parallel.offload;
    const std::string setting = is_sharded(strategy)
                                    ? fmt::format("parallel.strategy {}", word_of(strategy))
                                : offload.params == Offload::kCpu ? "parallel.offload.params"
                                : offload.base == Offload::kCpu   ? "parallel.offload.base"
                                                                  : "";
    if (setting.empty()) return;
    warn(fmt::format("train.ddp_comm_hook has no effect with {}, which sums gradients in fp32",
                     setting),
         "train.ddp_comm_hook");
  }

  void check_tensor_parallelism() {
    const std::string setting = model_parallelism();
    if (config_.parallel.strategy != Strategy::kTensor && setting != "parallel.tp") return;
    if (config_.tuning.trains_adapter() && config_.tuning.lora.init == LoraInit::kPissa) {
      report(fmt::format("`tuning.lora.init: pissa` needs the singular values of whole matrices, "
                         "and `{}` divides them",
                         setting),
             {"tuning.lora.init", key_of(setting)},
             "use tuning.lora.init default, or parallel.strategy fsdp");
    }
    if (config_.tuning.backend != TuningBackend::kFused) {
      report(fmt::format("`tuning.backend: {}` computes with whole matrices, and `{}` divides them",
                         word_of(config_.tuning.backend), setting),
             {"tuning.backend", key_of(setting)}, "use tuning.backend fused");
    }
  }

  void check_fetch() {
    if (config_.parallel.fetch != Fetch::kPerStep) return;
    const std::string setting = model_parallelism();
    if (divides_layers(config_.parallel.strategy) || setting == "parallel.pp" ||
        setting == "parallel.device_map") {
      report(
          "`parallel.fetch: per_step` lets all micro-batches pass a layer before the next one, and "
          "a pipeline lets them pass its stages one after the other",
          {"parallel.fetch", key_of(setting)}, "remove parallel.fetch");
    }
    if (config_.train.objective != Objective::kSft) {
      report(
          fmt::format("`parallel.fetch: per_step` is for objective sft: with {} the gradient of a "
                      "micro-batch depends on its loss",
                      word_of(config_.train.objective)),
          {"parallel.fetch", "train.objective"}, "remove parallel.fetch");
    }
  }

  void check_offload() {
    const OffloadConfig& offload = config_.parallel.offload;
    const Optimizer optimizer = config_.train.optimizer;
    const bool is_adamw =
        optimizer == Optimizer::kAdamW || is_8bit(optimizer) || is_paged(optimizer);
    if (offload.optimizer == Offload::kCpu && offload.params == Offload::kNone && !is_adamw) {
      report(fmt::format("`parallel.offload.optimizer` keeps the state of adamw and adamw_8bit on "
                         "the host, not that of {}",
                         word_of(optimizer)),
             {"parallel.offload.optimizer", "train.optimizer"},
             "use train.optimizer adamw or adamw_8bit, or set parallel.offload.optimizer: none");
    }
    if (offload.activations == Offload::kCpu &&
        config_.train.gradient_checkpointing != Checkpointing::kLayer) {
      report(
          fmt::format("`parallel.offload.activations` moves what gradient checkpointing of whole "
                      "layers keeps, and `train.gradient_checkpointing` is {}",
                      word_of(config_.train.gradient_checkpointing)),
          {"parallel.offload.activations"}, "set train.gradient_checkpointing: true");
    }
    check_offload_of_base();
    check_offload_of_params();
  }

  /// The setting by which a device keeps some of the layers, or a part of each; "": there is none.
  /// The key of a setting "parallel.strategy: tensor" or "parallel.tp".
  static const char* key_of(const std::string& setting) {
    for (const char* key : {"parallel.tp", "parallel.pp", "parallel.device_map"})
      if (setting == key) return key;
    return "parallel.strategy";
  }

  std::string model_parallelism() const {
    const ParallelConfig& parallel = config_.parallel;
    if (parallel.device_map) return "parallel.device_map";
    if (divides_layers(parallel.strategy) || parallel.strategy == Strategy::kTensor)
      return fmt::format("parallel.strategy: {}", word_of(parallel.strategy));
    if (parallel.strategy != Strategy::kAuto) return "";
    return parallel.pp.value_or(1) > 1   ? "parallel.pp"
           : parallel.tp.value_or(1) > 1 ? "parallel.tp"
                                         : "";
  }

  void check_offload_of_base() {
    if (config_.parallel.offload.base == Offload::kNone) return;
    if (const std::string setting = model_parallelism(); !setting.empty()) {
      report(fmt::format("`parallel.offload.base` is not available with `{}`", setting),
             {"parallel.offload.base", "parallel.strategy"},
             "remove parallel.offload.base, or use parallel.strategy fsdp");
    }
    if (config_.tuning.mode == TuningMode::kFull)
      warn("parallel.offload.base has no effect with tuning.mode full: no weight is frozen",
           "parallel.offload.base");
  }

  void check_offload_of_params() {
    if (config_.parallel.offload.params == Offload::kNone) return;
    const Strategy strategy = config_.parallel.strategy;
    const std::string setting = model_parallelism();
    if (!setting.empty() || strategy == Strategy::kZero1 || strategy == Strategy::kZero2) {
      report(setting.empty()
                 ? fmt::format("`parallel.strategy: {}` keeps all weights on each device, and "
                               "`parallel.offload.params` keeps trained ones in host memory",
                               word_of(strategy))
                 : fmt::format("`parallel.offload.params` is not available with `{}`: each device "
                               "keeps its part of the weights",
                               setting),
             {"parallel.offload.params", "parallel.strategy"},
             "use parallel.strategy fsdp, or remove parallel.offload.params");
    }
    if (config_.tuning.trains_adapter())
      warn(fmt::format("parallel.offload.params saves little memory with tuning.mode {}: only the "
                       "adapter is trained. parallel.offload.base keeps frozen weights in host "
                       "memory",
                       word_of(config_.tuning.mode)),
           "parallel.offload.params");
  }

  void check_device_map() {
    const Strategy strategy = config_.parallel.strategy;
    if (!config_.parallel.device_map || strategy == Strategy::kAuto ||
        strategy == Strategy::kDeviceMap)
      return;
    report(fmt::format("`parallel.device_map` is set, but `parallel.strategy` is {}",
                       word_of(strategy)),
           {"parallel.device_map", "parallel.strategy"},
           "remove one of them: a device map is one process with the layers on several GPUs");
  }

  void check_schedule() {
    const TrainConfig& train = config_.train;
    if (train.warmup_ratio && train.warmup_steps) {
      report("`train.warmup_ratio` and `train.warmup_steps` are both set",
             {"train.warmup_ratio", "train.warmup_steps"}, "keep one of them");
    }
    const bool warms = train.warmup_ratio.value_or(0) > 0 || train.warmup_steps.value_or(0) > 0;
    if (train.scheduler == Scheduler::kConstant && warms) {
      warn("warm-up has no effect with train.scheduler constant; constant_with_warmup has one",
           "train.scheduler");
    }
    if (!parse_duration_s(train.save_every)) {
      report(fmt::format("`train.save_every` is `{}`; it takes a time such as 90s, 10m or 1h30m",
                         train.save_every),
             {"train.save_every"}, "write, for example, 30m");
    }
    if (parse_duration_s(config_.parallel.timeout).value_or(0) <= 0) {
      report(fmt::format("`parallel.timeout` is `{}`; it takes a time such as 90s, 10m or 1h30m",
                         config_.parallel.timeout),
             {"parallel.timeout"}, "write 30m, the default");
    }
    if (parse_duration_s(config_.parallel.stall_after).value_or(0) <= 0) {
      report(fmt::format("`parallel.stall_after` is `{}`; it takes a time such as 30s or 2m",
                         config_.parallel.stall_after),
             {"parallel.stall_after"}, "write 30s, the default");
    }
  }

 private:
  void check_answers() {
    if (config_.train.generation_num_beams > 1) {
      report(fmt::format("`train.generation_num_beams` is {}, and answers are generated without "
                         "beam search",
                         config_.train.generation_num_beams),
             {"train.generation_num_beams"}, "remove it: answers are greedy");
    }
    if (config_.train.objective == Objective::kDpo) {
      report(
          "`train.predict_with_generate` compares answers with a reference, and "
          "`train.objective` dpo compares pairs of answers",
          {"train.predict_with_generate", "train.objective"}, "remove predict_with_generate");
    }
    refuse_with_parts("train.predict_with_generate", "generates with the whole model on a device");
  }

  void check_token_accuracy() {
    if (config_.train.objective == Objective::kDpo) {
      report(
          "`train.eval_token_accuracy` is for objective sft: pairs of answers have other metrics",
          {"train.eval_token_accuracy", "train.objective"}, "remove eval_token_accuracy");
    }
    if (model_parallelism() != "parallel.tp" && config_.parallel.strategy != Strategy::kTensor)
      return;
    refuse_with_parts("train.eval_token_accuracy", "needs the whole head on a device");
  }

  /// Refuses what cannot be done where a device has some of the layers, or a part of each.
  void refuse_with_parts(const char* key, const char* reason) {
    const std::string setting = model_parallelism();
    if (setting.empty()) return;
    report(fmt::format("`{}` {}, and `{}` divides it", key, reason, setting),
           {key, key_of(setting)},
           "use parallel.strategy ddp, zero1, zero2, zero3, fsdp or hybrid, or remove it and "
           "measure checkpoints with `sftrun eval`");
  }

  /// The records that evaluations use; several sets have a loss each.
  const std::vector<DataSource>& validation_sources() const {
    return config_.data.val.empty() ? config_.data.train : config_.data.val;
  }

  /// Whether the metric may be the loss of a validation set. Names of subsets are known only when the
  /// data is loaded, which checks them again.
  bool names_validation_set(const std::string& metric) const {
    const std::vector<DataSource>& sources = validation_sources();
    if (sources.size() < 2) return false;
    return std::any_of(sources.begin(), sources.end(), [&](const DataSource& source) {
      const std::string file = std::filesystem::path(source.path).filename().string();
      return !source.name.empty() || is_loss_of_set(metric, source.path) ||
             is_loss_of_set(metric, file);
    });
  }

  std::vector<std::string> losses_of_sets() const {
    std::vector<std::string> names = {"eval_loss"};
    if (validation_sources().size() < 2) return names;
    for (const DataSource& source : validation_sources())
      names.push_back(
          fmt::format("eval_{}_loss", std::filesystem::path(source.path).stem().string()));
    return names;
  }

  /// @param asks the setting that needs the best evaluation
  void check_best(const char* asks) {
    const TrainConfig& train = config_.train;
    constexpr const char* kKey = "train.metric_for_best_model";
    const std::string metric = best_metric(train);
    const std::vector<std::string> known = best_metrics();
    const bool is_known = std::find(known.begin(), known.end(), metric) != known.end();
    if (!is_known && !metric.ends_with("_loss")) {
      const std::string near = nearest(metric, known);
      report(fmt::format("`{}` is `{}`, which no evaluation has", kKey,
                         excerpt(train.metric_for_best_model)),
             {kKey},
             near.empty() ? "use " + join(known, ", ") + " or eval_SET_loss"
                          : fmt::format("did you mean `{}`?", near));
    } else if (!is_known && !names_validation_set(metric)) {
      report(fmt::format("`{}` is `{}`, but no validation set has this name", kKey,
                         excerpt(train.metric_for_best_model)),
             {kKey}, "use " + join(losses_of_sets(), " or "));
    } else if (is_judged_by_answers(train) && !train.predict_with_generate) {
      report(fmt::format("`{}` is {}, which needs answers", kKey, metric), {kKey},
             "set train.predict_with_generate: true");
    } else if (metric == "eval_token_accuracy" && !train.eval_token_accuracy) {
      report(fmt::format("`{}` is {}, which is not measured", kKey, metric), {kKey},
             "set train.eval_token_accuracy: true");
    }
    const bool is_error = metric.ends_with("loss") || metric == "eval_perplexity";
    const bool is_score = is_judged_by_answers(train) || metric.ends_with("accuracy");
    if ((is_error || is_score) && train.greater_is_better == is_error) {
      warn(fmt::format("train.greater_is_better is {}: the best model is the one with the {} {}",
                       is_error, is_error ? "highest" : "lowest", metric),
           "train.greater_is_better");
    }
    if (train.eval_strategy == EvalStrategy::kNo) {
      report(fmt::format("`{}` needs evaluations, and `train.eval_strategy` is no", asks),
             {asks, "train.eval_strategy"},
             "set train.eval_strategy to epoch, or to steps with train.eval_steps");
    }
  }

  /// Metrics of evaluations, but for the losses of sets.
  std::vector<std::string> best_metrics() const {
    if (config_.train.objective == Objective::kDpo)
      return {"eval_loss",           "eval_rewards/accuracies", "eval_rewards/margins",
              "eval_rewards/chosen", "eval_rewards/rejected",   "eval_logps/chosen",
              "eval_logps/rejected"};
    return {"eval_loss",   "eval_perplexity", "eval_token_accuracy", "eval_rouge_l",
            "eval_rouge1", "eval_rouge2",     "eval_exact_match"};
  }

  void require_evaluations(const char* asks) {
    if (!config_.data.val.empty() || config_.data.val_split > 0) return;
    report(fmt::format("`{}` requires validation data, but there is none", asks), {asks},
           "set data.val to a file or data.val_split to a share such as 0.05");
  }

  /// Pairs of answers are for dpo, and dpo is for them.
  void check_formats(bool is_dpo) {
    const auto judge = [&](DataFormat format, const char* key) {
      const bool is_preference = format == DataFormat::kPreference;
      if (format == DataFormat::kAuto || is_preference == is_dpo) return;
      report(fmt::format("`{}` {} {}, but `train.objective` is {}", key,
                         std::string_view(key) == "data.format" ? "is" : "has the format",
                         word_of(format), word_of(config_.train.objective)),
             {key, "train.objective"},
             is_dpo ? "remove format: dpo reads records with \"chosen\" and \"rejected\""
                    : "set train.objective to dpo");
    };
    judge(config_.data.format, "data.format");
    for (const DataSource& source : config_.data.train) judge(source.format, "data.train");
    for (const DataSource& source : config_.data.val) judge(source.format, "data.val");
  }

  /// The reference model is the base model with the adapter switched off: what trains must be an
  /// adapter, and without it the model must be what the run began with.
  void check_dpo() {
    const TuningConfig& tuning = config_.tuning;
    const auto refuse = [&](const std::string& reason, const char* key, const std::string& fix) {
      report(fmt::format("`train.objective` is dpo, and {}", reason), {key, "train.objective"},
             fix);
    };
    if (!tuning.trains_adapter()) {
      refuse(fmt::format("its reference model is the base model with the adapter switched off, "
                         "which `tuning.mode` {} changes",
                         word_of(tuning.mode)),
             "tuning.mode", "set tuning.mode to lora or qlora");
      return;
    }
    if (tuning.lora.init == LoraInit::kPissa) {
      refuse(
          "`tuning.lora.init` pissa moves a part of the base model's weights into the adapter: "
          "the base model alone is no reference",
          "tuning.lora.init", "set tuning.lora.init to default");
    }
    if (!tuning.lora.modules_to_save.empty()) {
      refuse(
          "`tuning.lora.modules_to_save` trains modules that replace the base model's: there "
          "is no reference without them",
          "tuning.lora.modules_to_save",
          "remove modules_to_save; target_modules may name embed_tokens and lm_head");
    }
    if (!tuning.lora.init_from.empty()) {
      refuse(
          "the reference model would be the base model without the adapter of "
          "`tuning.lora.init_from`",
          "tuning.lora.init_from",
          "merge the adapter first (sftrun merge), and set model.name to the result");
    }
    if (config_.train.neftune_noise_alpha) {
      refuse(
          "the noise of `train.neftune_noise_alpha` would change what is compared with the "
          "reference model",
          "train.neftune_noise_alpha", "remove neftune_noise_alpha");
    }
    if (config_.train.router_aux_loss_coef.value_or(0) > 0) {
      refuse("its loss has no load-balancing term", "train.router_aux_loss_coef",
             "set train.router_aux_loss_coef to 0");
    }
    if (tuning.lora.dropout > 0) {
      warn("tuning.lora.dropout has no effect with train.objective dpo, as in TRL",
           "tuning.lora.dropout");
    }
    check_dpo_data();
  }

  void check_dpo_data() {
    const DataConfig& data = config_.data;
    if (data.thinking == Thinking::kSplit) {
      report("`data.thinking` is split, which makes several examples of one conversation",
             {"data.thinking", "train.objective"}, "set data.thinking to template or keep");
    }
    if (data.loss_on != LossOnChoice::kAssistant) {
      warn("data.loss_on has no effect with train.objective dpo: the two answers carry the labels",
           "data.loss_on");
    }
  }

  void check_streaming() {
    const DataConfig& data = config_.data;
    if (!config_.train.max_steps) {
      report(
          "`data.streaming` is set, but `train.max_steps` is not: the length of an epoch is "
          "unknown "
          "until the data have been read",
          {"data.streaming"}, "add, for example, max_steps: 1000 below train");
    }
    if (config_.train.eval_strategy == EvalStrategy::kEpoch) {
      report("`train.eval_strategy` is epoch, but streamed data have no epochs",
             {"train.eval_strategy", "data.streaming"}, "set it to steps, with eval_steps");
    }
    if (data.val_split > 0) {
      report("`data.val_split` cannot be used with streamed data",
             {"data.val_split", "data.streaming"}, "set data.val to a validation file");
    }
    if (data.group_by_length) {
      report(
          "`data.group_by_length` needs the lengths of all examples, which are unknown for "
          "streamed data",
          {"data.group_by_length", "data.streaming"}, "remove one of them");
    }
  }

  /// Names of columns are texts; `roles` is a map of texts.
  void check_fields(const char* key, const nlohmann::ordered_json& fields) {
    for (const auto& [name, column] : fields.items()) {
      const auto known = std::find(kRecordFields.begin(), kRecordFields.end(), name);
      const bool is_roles = name == "roles";
      if (known == kRecordFields.end() && !is_roles) {
        report(
            fmt::format("`{}` has the unknown field `{}`", key, name), {key},
            fmt::format(
                "known fields: {}, roles; write {{field: column}}",
                join(std::vector<std::string>(kRecordFields.begin(), kRecordFields.end()), ", ")));
      } else if (!is_roles && !column.is_string()) {
        report(fmt::format("`{}` has `{}: {}`; the value must be the name of a column", key, name,
                           column.dump()),
               {key}, fmt::format("write, for example, {{{}: question}}", name));
      } else if (is_roles && !is_map_of_texts(column)) {
        report(fmt::format("`{}` has `roles: {}`; the value must be a map of roles", key,
                           column.dump()),
               {key}, "write, for example, roles: {human: user, gpt: assistant}");
      }
    }
  }
  static bool is_map_of_texts(const nlohmann::ordered_json& json) {
    return json.is_object() &&
           std::all_of(json.begin(), json.end(), [](const auto& item) { return item.is_string(); });
  }

  void check_half(const char* key, std::optional<bool> asked, DTypeChoice dtype, const char* name) {
    const DTypeChoice chosen = config_.model.dtype;
    if (asked == true && chosen != DTypeChoice::kAuto && chosen != dtype) {
      report(fmt::format("`{}` is true, but `model.dtype` is {}", key, word_of(chosen)),
             {key, "model.dtype"}, fmt::format("set model.dtype to {} or remove {}", name, key));
    }
    if (asked == false && chosen == dtype) {
      report(fmt::format("`{}` is false, but `model.dtype` is {}", key, name), {key, "model.dtype"},
             fmt::format("remove {} or set model.dtype to auto", key));
    }
  }

  void warn_of_idle_lora() {
    constexpr std::string_view kSection = "tuning.lora.";
    const auto lora_of = [](const RunConfig& config) { return to_json(config)["tuning"]["lora"]; };
    const nlohmann::ordered_json mine = lora_of(config_), defaults = lora_of(RunConfig{});
    std::vector<std::string> keys;
    for (const auto& [name, value] : mine.items())
      if (value != defaults[name]) keys.push_back(name);
    if (keys.empty()) return;
    warn(fmt::format("tuning.lora ({}) has no effect with tuning.mode {}", join(keys, ", "),
                     word_of(config_.tuning.mode)),
         std::string(kSection) + keys.front());
  }

  void check_quant(const TuningConfig& tuning) {
    if (tuning.quantises_base() && !tuning.trains_adapter()) {
      report(fmt::format("`tuning.quant` is {}, but quantised weights cannot be trained",
                         word_of(tuning.quant)),
             {"tuning.quant", "tuning.mode"}, "set tuning.mode to qlora, or quant to none");
    }
    if (tuning.mode == TuningMode::kQlora && tuning.quant == Quant::kNone) {
      report("`tuning.mode` is qlora, but `tuning.quant` is none", {"tuning.mode", "tuning.quant"},
             "remove quant, or set tuning.mode to lora");
    }
    constexpr int64_t kSmallest = 32, kLargest = 4096;
    const int64_t size = tuning.quant_block_size;
    if (size < kSmallest || size > kLargest || (size & (size - 1)) != 0) {
      report(fmt::format("`tuning.quant_block_size` is {}", size), {"tuning.quant_block_size"},
             "write 32, 64, 128, 256, 512, 1024, 2048 or 4096");
    }
  }

  void check_targets(const LoraConfig& lora) {
    if (lora.target_modules.empty() && lora.target_parameters.empty()) {
      report("`tuning.lora.target_modules` is empty", {"tuning.lora.target_modules"},
             "use all-linear");
    }
    for (const std::string& target : lora.target_modules) {
      if (target.find(',') == std::string::npos) continue;
      report(fmt::format("`tuning.lora.target_modules` has `{}`, which is not the name of a module",
                         target),
             {"tuning.lora.target_modules"},
             fmt::format("write a list: [{}]", join(split(target, ','), ", ")));
    }
  }

  /// Combinations that PEFT refuses, too.
  void check_variants(const LoraConfig& lora) {
    const bool experts = !lora.target_parameters.empty(), pissa = lora.init == LoraInit::kPissa;
    if (lora.dora && experts) {
      report("`tuning.lora.dora` cannot be used with `target_parameters`",
             {"tuning.lora.dora", "tuning.lora.target_parameters"},
             "remove one of them; DoRA is not defined for experts");
    }
    if (pissa && experts) {
      report("`tuning.lora.init` pissa cannot be used with `target_parameters`",
             {"tuning.lora.init", "tuning.lora.target_parameters"},
             "remove one of them; LoRA of experts always starts at zero");
    }
    if (pissa && !lora.init_from.empty()) {
      report("`tuning.lora.init` is pissa, but `init_from` already sets the initial weights",
             {"tuning.lora.init", "tuning.lora.init_from"}, "remove one of them");
    }
  }

  void check_expression(const char* key, const std::string& expression) {
    const std::string problem = regex_problem(expression);
    if (problem.empty()) return;
    report(fmt::format("`{}` has `{}`, which is not a regular expression: {}", key,
                       excerpt(expression), problem),
           {key}, "write the name of a module, or its end: o_proj");
  }

  void check_pattern(const nlohmann::ordered_json& pattern, const char* key, bool whole) {
    for (const auto& [name, value] : pattern.items()) {
      const std::string shown =
          value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
      const bool fits = whole ? value.is_number_integer() && value.get<int64_t>() >= 1 &&
                                    value.get<int64_t>() <= kMostRank
                              : value.is_number() && value.get<double>() > 0;
      if (!fits) {
        report(fmt::format("`{}` is {} for `{}`", key, excerpt(shown), excerpt(name)), {key},
               whole ? fmt::format("write a whole number from 1 to {}", kMostRank)
                     : "write a number above 0");
      }
      check_expression(key, name);
    }
  }

  bool set(const std::string& key) const { return loaded_.places.contains(key); }

  void report(const std::string& message, std::initializer_list<const char*> keys,
              const std::string& fix) {
    std::vector<std::string> places;
    for (const char* key : keys) {
      if (set(key)) places.push_back(loaded_.place_of(key));
    }
    problems_.push_back({message, join(places, "; "), fix});
  }

  void warn(const std::string& message, const std::string& key) {
    const std::string place = loaded_.place_of(key);
    warnings_.push_back(place.empty() ? message : fmt::format("{} ({})", message, place));
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  Problems& problems_;
  std::vector<std::string>& warnings_;
};

}  // namespace

void validate(const LoadedConfig& loaded, bool needs_data, Problems& problems,
              std::vector<std::string>& warnings) {
  RelationCheck check(loaded, problems, warnings);
  if (needs_data) check.require_names();
  check.check_dtype();
  check.check_tuning();
  check.check_data();
  check.check_objective();
  check.check_optimizer();
  check.check_evaluation(needs_data);
  check.check_answers_and_best(needs_data);
  check.check_callbacks();
  check.check_schedule();
  check.check_tensor_parallelism();
  check.check_fetch();
  check.check_offload();
  check.check_device_map();
  check.check_comm_hook();
}

}  // namespace sftrun::config
