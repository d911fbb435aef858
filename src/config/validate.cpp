#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "choices.h"
#include "layers.h"
#include "objective_refusals.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/idle_settings.h"
#include "sftrun/config/refusals.h"
#include "sftrun/core/python_syntax.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::config {
namespace {

/// Keys of data.fields whose value is a name.
std::vector<std::string> record_fields() {
  std::vector<std::string> fields = record_columns();
  fields.insert(fields.end(), kTurnFields.begin(), kTurnFields.end());
  return fields;
}

constexpr int64_t kMostRank = 65536;
constexpr const char* kBestMetric = "train.metric_for_best_model";

bool has_validation_data(const DataConfig& data) {
  return !data.val.empty() || data.val_split > 0;
}

/// The settings that say when to evaluate.
std::vector<std::string> times_of_evaluations(const TrainConfig& train) {
  const EvalStrategy strategy = train.eval_strategy;
  std::vector<std::string> keys;
  if (strategy == EvalStrategy::kNo) return keys;
  if (strategy == EvalStrategy::kSteps || strategy == EvalStrategy::kEpoch)
    keys.emplace_back("train.eval_strategy");
  if (train.eval_steps) keys.emplace_back("train.eval_steps");
  if (train.eval_on_start) keys.emplace_back("train.eval_on_start");
  return keys;
}

/// The setting that needs the best evaluation; nullptr: none.
const char* use_of_best(const TrainConfig& train) {
  return train.early_stopping_patience          ? "train.early_stopping_patience"
         : train.load_best_model_at_end         ? "train.load_best_model_at_end"
         : !train.metric_for_best_model.empty() ? "train.metric_for_best_model"
                                                : nullptr;
}

/// The setting that needs evaluations; nullptr: none.
const char* use_of_evaluations(const TrainConfig& train) {
  return train.predict_with_generate ? "train.predict_with_generate" : use_of_best(train);
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
             {"tuning.mode"}, "add `trainable:` below `tuning:`, for example ['mlp', 'norm']");
    }
    for (const std::string& pattern : tuning.trainable)
      check_expression("tuning.trainable", pattern, regex_problem(pattern));
    if (tuning.mode != TuningMode::kPartial && !tuning.trainable.empty()) {
      report("`tuning.trainable` is for mode partial only", {"tuning.trainable", "tuning.mode"},
             "set tuning.mode to partial, or remove trainable");
    }
    if (!lora && set("tuning.lora.init_from") && !tuning.lora.init_from.empty()) {
      report(
          "`tuning.lora.init_from` is for modes lora and qlora only",
          {"tuning.lora.init_from", "tuning.mode"},
          "set tuning.mode to lora; or merge the adapter first (sftrun merge), set model.name to "
          "the result and remove init_from");
    }
    if (!lora && config_.train.loraplus_lr_ratio) {
      report("`train.loraplus_lr_ratio` is for modes lora and qlora only",
             {"train.loraplus_lr_ratio", "tuning.mode"}, "remove it, or set tuning.mode to lora");
    }
    if (!lora) return;
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
    if (data.bin_tokens.value.value_or(0) > config_.model.max_seq_len) {
      report(fmt::format("`data.bin_tokens` {} is more than `model.max_seq_len` {}",
                         *data.bin_tokens.value, config_.model.max_seq_len),
             {"data.bin_tokens", "model.max_seq_len"},
             "lower data.bin_tokens or raise model.max_seq_len; train.batch_size, too, gives more "
             "tokens per step");
    }
    if (data.streaming) check_streaming();
  }

  /// @param trains whether the training data are read
  void check_objective(bool trains) {
    check_formats(trains);
    report(objective_refusals(config_));
  }

  void check_optimizer() {
    const TrainConfig& train = config_.train;
    const OptimizerInfo& optimizer = optimizer_info(train.optimizer);
    if (optimizer.refusal == nullptr) return;
    const auto refusal = optimizer.refusal(train.resolved_momentum(), train.resolved_nesterov());
    if (refusal) report(refusal->message, {refusal->key}, refusal->fix);
  }

  void check_evaluation(bool needs_data) {
    const TrainConfig& train = config_.train;
    const bool has_val = has_validation_data(config_.data);
    if (train.eval_strategy == EvalStrategy::kSteps && !train.eval_steps) {
      report("`train.eval_strategy` is steps, but `train.eval_steps` is not set",
             {"train.eval_strategy"}, "add, for example, eval_steps: 200");
    }
    if (has_val || !needs_data) return;
    const std::vector<std::string> asks = times_of_evaluations(train);
    if (asks.empty()) return;
    report(fmt::format("`{}` requires validation data, but there is none", asks.front()),
           {asks.front().c_str()},
           "set data.val to a file or data.val_split to a share such as 0.05, or remove " +
               join(asks, " and "));
  }

  /// Settings of evaluations, their answers, and the best of them.
  void check_answers_and_best(bool needs_data) {
    const TrainConfig& train = config_.train;
    if (train.predict_with_generate) check_answers();
    if (train.eval_token_accuracy) check_token_accuracy();
    if (const char* asks = use_of_best(train)) check_best(asks);
    const char* asks = use_of_evaluations(train);
    if (asks != nullptr && needs_data) require_evaluations(asks);
    if (train.early_stopping_patience && !train.load_best_model_at_end)
      warn(
          "train.early_stopping_patience without train.load_best_model_at_end keeps no checkpoint "
          "of the best evaluation, and the result is the model of the last step; for the best "
          "model set train.load_best_model_at_end: true",
          "train.early_stopping_patience");
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
    check_time("callbacks.timeout", callbacks.timeout, /*may_be_zero=*/false,
               "write 1m, the default");
  }

  /// Sizes of axes compose, but for those of one process and of whole copies.
  void check_sizes() {
    using enum Strategy;
    const ParallelConfig& parallel = config_.parallel;
    const bool is_one_process = parallel.device_map || parallel.strategy == kDeviceMap;
    const auto refuse = [&](const char* key, const std::optional<int64_t>& size,
                            const char* reason) {
      if (size.value_or(1) == 1) return;
      const char* other = parallel.device_map ? "parallel.device_map" : "parallel.strategy";
      report(fmt::format("`{}` divides the processes of a run, and `{}` {}", key,
                         parallel.device_map
                             ? std::string(other)
                             : fmt::format("{}: {}", other, word_of(parallel.strategy)),
                         reason),
             {key, other}, fmt::format("remove {} or {}", key, other));
    };
    if (is_one_process || parallel.strategy == kSingle) {
      if (!is_one_process) refuse("parallel.pp", parallel.pp, "has one process");
      refuse("parallel.tp", parallel.tp, "has one process");
      refuse("parallel.dp_shard", parallel.dp_shard, "has one process");
      refuse("parallel.dp_replicate", parallel.dp_replicate, "has one process");
    }
    if (parallel.strategy == kDdp)
      refuse("parallel.dp_shard", parallel.dp_shard, "keeps whole copies");
  }

  void check_fetch() {
    if (config_.parallel.fetch == Fetch::kPerStep)
      report(objective_refusals(config_, "parallel.fetch"));
  }

  void check_offload() {
    const OffloadConfig& offload = config_.parallel.offload;
    const OptimizerInfo& optimizer = optimizer_info(config_.train.optimizer);
    if (offload.optimizer == Offload::kCpu && offload.params == Offload::kNone &&
        !optimizer.on_host) {
      const std::vector<std::string> others = optimizer_names(
          [](const OptimizerInfo& info) { return info.on_host && !info.is_on_host(); });
      report(fmt::format("`parallel.offload.optimizer` keeps the state of {} on the host, not that "
                         "of {}",
                         joined(others, " and "), optimizer.name),
             {"parallel.offload.optimizer", "train.optimizer"},
             fmt::format("use train.optimizer {}, or set parallel.offload.optimizer: none",
                         joined(others, " or ")));
    }
    if (offload.activations == Offload::kCpu &&
        config_.train.gradient_checkpointing != Checkpointing::kLayer) {
      report(
          fmt::format("`parallel.offload.activations` moves what gradient checkpointing of whole "
                      "layers keeps, and `train.gradient_checkpointing` is {}",
                      word_of(config_.train.gradient_checkpointing)),
          {"parallel.offload.activations"}, "set train.gradient_checkpointing: true");
    }
    if (offload.params != Offload::kNone && config_.tuning.trains_adapter())
      warn(fmt::format("parallel.offload.params saves little memory with tuning.mode {}: only the "
                       "adapter is trained. parallel.offload.base keeps frozen weights in host "
                       "memory",
                       word_of(config_.tuning.mode)),
           "parallel.offload.params");
  }

  /// What the table of refusals knows before there are processes and a model.
  void check_divisions() {
    std::set<std::string> refused;
    for (const Refusal& row : refusals()) {
      const std::string setting = row.where.setting(config_.parallel);
      if (row.known_by != KnownBy::kSettings || setting.empty() || !row.applies(config_, {}))
        continue;
      if (refused.insert(row.key).second)
        report(message_of(row, config_), {row.key, key_of_setting(setting).c_str()},
               row.fix(config_.parallel));
    }
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
    check_save_every(train.save_every);
    check_time("parallel.timeout", config_.parallel.timeout, /*may_be_zero=*/false,
               "write 30m, the default");
    check_time("parallel.stall_after", config_.parallel.stall_after, /*may_be_zero=*/false,
               "write 30s, the default");
  }

 private:
  /// A number alone would be seconds, where many mean steps.
  void check_save_every(const std::string& text) {
    const auto number = parse_double(text);
    if (!number || *number <= 0 || !parse_duration_s(text))
      return check_time("train.save_every", text, /*may_be_zero=*/true, "write, for example, 30m");
    const auto steps = parse_int(text);
    report(fmt::format("`train.save_every` is `{}`, a time without a unit", excerpt(text)),
           {"train.save_every"},
           steps ? fmt::format("write {}s; for steps, set train.save_steps: {} in its place",
                               *steps, *steps)
                 : fmt::format("write {}s", excerpt(text)));
  }

  void check_time(const char* key, const std::string& text, bool may_be_zero,
                  const std::string& fix) {
    const auto seconds = parse_duration_s(text);
    if (seconds && (may_be_zero || *seconds > 0)) return;
    report(fmt::format("`{}` is `{}`; it takes a time such as 90s, 10m or 1h30m, at most 3650d",
                       key, excerpt(text)),
           {key}, fix);
  }

  void check_answers() {
    if (config_.train.generation_num_beams > 1) {
      report(fmt::format("`train.generation_num_beams` is {}, and answers are generated without "
                         "beam search",
                         config_.train.generation_num_beams),
             {"train.generation_num_beams"}, "remove it: answers are greedy");
    }
    report(objective_refusals(config_, "train.predict_with_generate"));
  }

  void check_token_accuracy() { report(objective_refusals(config_, "train.eval_token_accuracy")); }

  /// The records that evaluations use; several sets have a loss each.
  const std::vector<DataSource>& validation_sources() const {
    return config_.data.val.empty() ? config_.data.train : config_.data.val;
  }

  /// Names of the sets, as evaluations have them. Names of subsets are known only when the data is
  /// loaded.
  std::vector<std::string> validation_sets() const {
    std::vector<std::string> names;
    for (const DataSource& source : validation_sources()) names.push_back(source.path);
    return distinct_set_names(names);
  }

  void check_loss_of_set(const std::string& metric) {
    const std::vector<std::string> sets = validation_sets();
    const std::vector<DataSource>& sources = validation_sources();
    const auto is_subset = [](const DataSource& source) { return !source.name.empty(); };
    if (sets.size() > 1 && std::any_of(sources.begin(), sources.end(), is_subset)) return;
    if (const auto problem = problem_of_set_loss(metric, sets))
      report(fmt::format("`{}` is `{}`, {}", kBestMetric, excerpt(metric), problem->reason),
             {kBestMetric}, problem->fix);
  }

  /// @param asks the setting that needs the best evaluation
  void check_best(const char* asks) {
    const TrainConfig& train = config_.train;
    constexpr const char* kKey = kBestMetric;
    const std::string metric = best_metric(train);
    const std::vector<std::string> known = best_metrics();
    const bool is_known = std::find(known.begin(), known.end(), metric) != known.end();
    if (!is_known && !metric.ends_with("_loss")) {
      const std::string near = nearest_metric(metric, known);
      report(fmt::format("`{}` is `{}`, which no evaluation has", kKey,
                         excerpt(train.metric_for_best_model)),
             {kKey},
             near.empty() ? "use " + join(known, ", ") + " or eval_SET_loss"
                          : fmt::format("did you mean `{}`?", near));
    } else if (!is_known) {
      check_loss_of_set(metric);
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

  /// Compares what follows "eval_", which all have.
  static std::string nearest_metric(const std::string& metric, std::vector<std::string> known) {
    constexpr std::string_view kBefore = "eval_";
    for (std::string& name : known) name.erase(0, kBefore.size());
    const size_t begin = metric.starts_with(kBefore) ? kBefore.size() : 0;
    const std::string near = nearest(metric.substr(begin), known);
    return near.empty() ? "" : std::string(kBefore) + near;
  }

  /// Metrics of evaluations, but for the losses of sets.
  std::vector<std::string> best_metrics() const {
    const ObjectiveInfo& objective = config_.train.objective_info();
    std::vector<std::string> names = {"eval_loss"};
    if (objective.is_cross_entropy)
      names.insert(names.end(), {"eval_perplexity", "eval_token_accuracy"});
    if (objective.reads_answers())
      names.insert(names.end(), {"eval_rouge_l", "eval_rouge1", "eval_rouge2", "eval_exact_match"});
    for (const std::string_view metric : objective.metrics)
      names.push_back("eval_" + std::string(metric));
    return names;
  }

  void require_evaluations(const char* asks) {
    if (has_validation_data(config_.data)) return;
    report(fmt::format("`{}` requires validation data, but there is none", asks), {asks},
           "set data.val to a file or data.val_split to a share such as 0.05");
  }

  /// Records with two answers are for objectives on pairs, and these are for them.
  void check_formats(bool trains) {
    const ObjectiveInfo& objective = config_.train.objective_info();
    const auto judge = [&](RecordFormat format, const char* key) {
      if (format == RecordFormat::kAuto || format_info(format).is_pair == objective.reads_pairs())
        return;
      report(fmt::format("`{}` {} {}, but `train.objective` is {}", key,
                         std::string_view(key) == "data.format" ? "is" : "has the format",
                         word_of(format), objective.name),
             {key, "train.objective"},
             objective.reads_pairs()
                 ? fmt::format("remove format: {} reads records with \"chosen\" and \"rejected\"",
                               objective.name)
                 : fmt::format("for pairs of answers set train.objective to {}; for other records "
                               "remove format",
                               objectives_for(ExampleForm::kPair)));
    };
    judge(config_.data.format, "data.format");
    if (trains)
      for (const DataSource& source : config_.data.train) judge(source.format, "data.train");
    for (const DataSource& source : config_.data.val) judge(source.format, "data.val");
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
    if (config_.train.save_strategy == SaveStrategy::kEpoch) {
      report("`train.save_strategy` is epoch, but streamed data have no epochs",
             {"train.save_strategy", "data.streaming"}, "set it to steps, with save_steps");
    }
    if (data.val_split > 0) {
      report("`data.val_split` cannot be used with streamed data",
             {"data.val_split", "data.streaming"},
             "remove val_split, and set data.val to a validation file");
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
    const std::vector<std::string> known = record_fields(), optional = optional_columns();
    const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const auto& [name, column] : fields.items()) {
      const bool is_roles = name == "roles";
      if (!is_in(known, name) && !is_roles) {
        report(fmt::format("`{}` has the unknown field `{}`", key, excerpt(name)), {key},
               fmt::format("known fields: {}, roles; write {{field: column}}", join(known, ", ")));
      } else if (!is_roles && !column.is_string()) {
        report(fmt::format("`{}` has `{}: {}`; the value must be the name of a column", key, name,
                           shown(column)),
               {key}, fmt::format("write, for example, {{{}: question}}", name));
      } else if (column == "" && !is_in(optional, name)) {
        report(fmt::format("`{}` has `{}: \"\"`, which leaves out that part of the records", key,
                           name),
               {key},
               fmt::format("name its column; only {} can be left out", joined(optional, " and ")));
      } else if (is_roles && !is_map_of_texts(column)) {
        report(fmt::format("`{}` has `roles: {}`; the value must be a map of roles", key,
                           shown(column)),
               {key}, "write, for example, roles: {human: user, gpt: assistant}");
      }
    }
  }
  static std::string shown(const nlohmann::ordered_json& value) {
    return excerpt(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
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

  void check_quant(const TuningConfig& tuning) {
    if ((tuning.quantises_base() || tuning.keeps_blocks()) && !tuning.trains_adapter()) {
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
                         excerpt(target)),
             {"tuning.lora.target_modules"},
             excerpt(fmt::format("write a list: [{}]", join(split(target, ','), ", "))));
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

  void check_expression(const char* key, const std::string& expression,
                        const std::string& problem) {
    if (problem.empty()) return;
    report(fmt::format("`{}` has `{}`, which is not a regular expression: {}", key,
                       excerpt(expression), problem),
           {key}, "write the name of a module, or its end: o_proj");
  }

  void check_pattern(const nlohmann::ordered_json& pattern, const char* key, bool whole) {
    for (const auto& [name, value] : pattern.items()) {
      const bool fits = whole ? value.is_number_integer() && value.get<int64_t>() >= 1 &&
                                    value.get<int64_t>() <= kMostRank
                              : value.is_number() && value.get<double>() > 0;
      if (!fits) {
        report(fmt::format("`{}` is {} for `{}`", key, shown(value), excerpt(name)), {key},
               whole ? fmt::format("write a whole number from 1 to {}", kMostRank)
                     : "write a number above 0");
      }
      check_expression(key, name, peft_key_problem(name));
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

  void report(const std::vector<ObjectiveRefusal>& refusals) {
    for (const ObjectiveRefusal& refusal : refusals)
      report(refusal.message, {refusal.key, "train.objective"}, refusal.fix);
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

void validate(const LoadedConfig& loaded, ConfigUse use, Problems& problems,
              std::vector<std::string>& warnings) {
  const bool needs_data = use != ConfigUse::kNoRun, trains = use != ConfigUse::kEvaluation;
  RelationCheck check(loaded, problems, warnings);
  if (needs_data) check.require_names();
  check.check_dtype();
  check.check_tuning();
  check.check_data();
  check.check_objective(trains);
  check.check_optimizer();
  if (trains) {
    check.check_evaluation(needs_data);
    check.check_answers_and_best(needs_data);
  }
  check.check_callbacks();
  check.check_schedule();
  check.check_fetch();
  check.check_offload();
  check.check_divisions();
  check.check_device_map();
  check.check_sizes();
  for (const IdleSetting& idle : idle_settings(loaded)) warnings.push_back(idle.warning);
}

bool lacks_validation_data(const RunConfig& config) {
  return !has_validation_data(config.data) && (!times_of_evaluations(config.train).empty() ||
                                               use_of_evaluations(config.train) != nullptr);
}

}  // namespace sftrun::config
