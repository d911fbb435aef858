#include "sftrun/config/idle_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "choices.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/teacher.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

/// Settings that share the reason for which they change nothing.
struct IdleRule {
  std::vector<std::string> keys;
  /// The end of a sentence that begins "KEY has no effect"; empty: it has one, or may have.
  std::function<std::string(const RunConfig& run, const RunFacts& facts)> reason;
  /// Whether the run would have the value anyway, as in a file of resolved values; null: never.
  /// @param asked before it was resolved
  std::function<bool(const RunConfig& asked, const RunConfig& run)> is_implied = nullptr;
  std::string common_name = {};  ///< of the section whose keys one warning names together
  std::string part = {};      ///< of the key's value, if only that has none: "weight in data.val"
  bool also_default = false;  ///< a value that is the default is asked for, too
};
using IdleRules = std::vector<IdleRule>;

/// Whether some optimizers read the key, and that of the run does not.
IdleRule read_by_some_optimizers(std::string_view setting) {
  return {{"train." + std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            const OptimizerInfo& optimizer = optimizer_info(run.train.optimizer);
            if (optimizer.reads(setting)) return std::string();
            const std::vector<std::string> readers =
                optimizer_names([&](const OptimizerInfo& info) { return info.reads(setting); });
            return fmt::format(" with train.optimizer {}: only {} {} it", optimizer.name,
                               joined(readers, " and "), readers.size() == 1 ? "reads" : "read");
          }};
}

/// Whether an optimizer for matrices updates everything that is trained: A and B alone.
bool updates_all(const OptimizerInfo& optimizer, const TuningConfig& tuning) {
  const LoraConfig& lora = tuning.lora;
  return optimizer.updates(TensorRole::kLoraA) && optimizer.updates(TensorRole::kLoraB) &&
         tuning.trains_adapter() && !lora.dora && lora.modules_to_save.empty() &&
         !tuning.full_parts().any() && lora.init_from.empty();  // that adapter may have more
}

/// Settings of the optimizer for tensors that the run's own does not update.
IdleRule read_for_other_tensors(const OptimizerInfo& own) {
  std::vector<std::string> keys;
  for (const std::string_view setting : optimizer_info(*own.others).settings)
    keys.push_back("train." + std::string(setting));
  return {std::move(keys), [&own](const RunConfig& run, const RunFacts&) {
            const bool is_idle =
                run.train.optimizer == own.optimizer && updates_all(own, run.tuning);
            return is_idle ? fmt::format(
                                 " with train.optimizer {}, which updates LoRA's A and B "
                                 "itself: AdamW is for tensors that are not matrices",
                                 own.name)
                           : "";
          }};
}

IdleRules rules_of_optimizers() {
  IdleRules rules;
  for (const std::string_view setting : optimizer_settings())
    rules.push_back(read_by_some_optimizers(setting));
  for (const OptimizerInfo& info : kOptimizers)
    if (info.others) rules.push_back(read_for_other_tensors(info));
  rules.push_back({{"train.nesterov"}, [](const RunConfig& run, const RunFacts&) {
                     const OptimizerInfo& optimizer = optimizer_info(run.train.optimizer);
                     const bool is_idle = optimizer.reads("nesterov") &&
                                          optimizer.refusal == nullptr &&
                                          run.train.resolved_momentum() == 0;
                     return is_idle ? " with train.momentum 0" : "";
                   }});
  return rules;
}

bool has_validation_data(const RunConfig& run) {
  return !run.data.val.empty() || run.data.val_split > 0;
}

/// Why a run evaluates nothing; empty: it does.
std::string why_no_evaluation(const RunConfig& run) {
  if (!has_validation_data(run)) return " without validation data (data.val or data.val_split)";
  const bool evaluates = run.train.eval_strategy != EvalStrategy::kNo || run.train.eval_on_start;
  return evaluates ? "" : ": train.eval_strategy is no";
}

/// Whether every data set is said to have texts without answers.
bool all_are_text(const DataConfig& data) {
  const auto is_text = [&](const DataSource& source) {
    return is_format(source.format == RecordFormat::kAuto ? data.format : source.format,
                     &RecordFormatInfo::is_text);
  };
  return !data.train.empty() && std::all_of(data.train.begin(), data.train.end(), is_text) &&
         std::all_of(data.val.begin(), data.val.end(), is_text);
}

std::string for_text(const RunConfig& run, const RunFacts&) {
  return all_are_text(run.data) ? " on data of the format text" : "";
}

/// Queries and texts are not rendered.
std::string for_queries(const RunConfig& run, const RunFacts&) {
  const ObjectiveInfo& objective = run.train.objective_info();
  return objective.reads_retrieval() ? fmt::format(" with train.objective {}", objective.name) : "";
}

bool draws_data(const DataConfig& data) {
  const auto is_drawn = [](const DataSource& source) {
    return source.weight != std::floor(source.weight);
  };
  // Streaming takes the share of each data set from the order of its files.
  const bool draws_shares =
      !data.streaming && std::any_of(data.train.begin(), data.train.end(), is_drawn);
  return data.shuffle || data.val_split > 0 || draws_shares;
}

/// Whether the order of a stream depends on the size of its windows.
bool orders_windows(const DataConfig& data) {
  return data.shuffle || data.packing || data.train.size() > 1;
}

bool weighs_validation(const DataConfig& data) {
  return std::any_of(data.val.begin(), data.val.end(),
                     [](const DataSource& source) { return source.weight != 1; });
}

bool have_own_formats(const DataConfig& data) {
  const auto has_own = [](const DataSource& s) { return s.format != RecordFormat::kAuto; };
  return std::all_of(data.train.begin(), data.train.end(), has_own) &&
         std::all_of(data.val.begin(), data.val.end(), has_own) && !data.train.empty();
}

IdleRules rules_of_data() {
  return {
      {{"data.shuffle_buffer"},
       [](const RunConfig& run, const RunFacts&) {
         if (!run.data.streaming) return " without data.streaming";
         return orders_windows(run.data) ? ""
                                         : " without data.shuffle and data.packing, where records "
                                           "stay in the order of the "
                                           "data set";
       }},
      {{"data.cache_dir"},
       [](const RunConfig& run, const RunFacts&) {
         const bool is_used = !run.data.streaming || !run.data.val.empty();
         return is_used ? "" : " with data.streaming, which tokenizes during training";
       },
       [](const RunConfig& asked, const RunConfig&) { return is_none_word(asked.data.cache_dir); }},
      {{"data.bin_tokens"},
       [](const RunConfig& run, const RunFacts&) {
         return run.data.packing ? "" : " without data.packing";
       }},
      {.keys = {"data.packing"},
       .reason =
           [](const RunConfig& run, const RunFacts&) {
             return run.train.writes_answers()
                        ? " with train.rollouts: answers that the run writes are not packed"
                        : "";
           },
       .is_implied = [](const RunConfig& asked, const RunConfig&) { return !asked.data.packing; },
       .also_default = true},
      {{"data.seed"},
       [](const RunConfig& run, const RunFacts&) {
         return draws_data(run.data) ? "" : " without data.shuffle and data.val_split";
       }},
      {{"data.format"},
       [](const RunConfig& run, const RunFacts&) {
         return have_own_formats(run.data) ? ": each data set has a format of its own" : "";
       }},
      {{"data.val"}, [](const RunConfig& run, const RunFacts&) { return why_no_evaluation(run); }},
      {.keys = {"data.val"},
       .reason =
           [](const RunConfig& run, const RunFacts&) {
             return weighs_validation(run.data)
                        ? ": an evaluation reads each record once; max_samples limits a data set"
                        : "";
           },
       .part = "weight in data.val"},
      {{"data.thinking", "data.empty_thinking", "data.loss_on"}, for_text},
      {{"data.thinking", "data.empty_thinking"}, for_queries},
      {{"data.thinking"},
       [](const RunConfig& run, const RunFacts&) {
         const bool splits = run.data.thinking == Thinking::kSplit;
         return splits && run.data.loss_on != LossOnChoice::kAssistant
                    ? ": split is for data.loss_on assistant"
                    : "";
       }},
  };
}

/// " with train.objective sft"
std::string with_objective(const RunConfig& run) {
  return fmt::format(" with train.objective {}", run.train.objective_info().name);
}

/// Whether some objectives read the key, and that of the run does not.
IdleRule read_by_some_objectives(std::string_view setting) {
  return {{std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            if (run.train.objective_info().reads(setting)) return std::string();
            const std::vector<std::string> readers =
                objective_names([&](const ObjectiveInfo& info) { return info.reads(setting); });
            return fmt::format("{}: only {} {} it", with_objective(run), joined(readers, " and "),
                               readers.size() == 1 ? "reads" : "read");
          }};
}

/// Whether some losses read the key, and no loss of the run does.
IdleRule read_by_some_losses(std::string_view setting) {
  return {{std::string(setting)}, [setting](const RunConfig& run, const RunFacts&) {
            const LossMixture losses = run.train.losses();
            const bool is_read = std::any_of(
                losses.shares.begin(), losses.shares.end(),
                [&](const LossShare& share) { return loss_info(share.loss).reads(setting); });
            // Objectives with a loss of their own say themselves what they read.
            if (is_read || losses.shares.empty()) return std::string();
            return fmt::format(" with train.loss_type {}: only {} read it", words_of(losses),
                               losses_that_read(setting));
          }};
}

IdleRules rules_of_objectives() {
  IdleRules rules;
  for (const std::string_view setting : objective_settings())
    rules.push_back(read_by_some_objectives(setting));
  for (const std::string_view setting : loss_settings())
    rules.push_back(read_by_some_losses(setting));
  rules.push_back({{"train.beta", "train.reference", "train.reference_logps", "train.ld_alpha"},
                   [](const RunConfig& run, const RunFacts&) {
                     const LossMixture losses = run.train.losses();
                     const bool compares = std::any_of(
                         losses.shares.begin(), losses.shares.end(), [](const LossShare& share) {
                           return !loss_info(share.loss).is_over_tokens;
                         });
                     return losses.shares.empty() || compares
                                ? std::string()
                                : fmt::format(" with train.loss_type {}, which compares nothing",
                                              words_of(losses));
                   }});
  rules.push_back({{"train.reference_logps"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.reference_model() == ReferenceModel::kPath
                                ? std::string(
                                      ": log-probabilities of a model that is named by "
                                      "its path are always computed before the first step")
                                : std::string();
                   }});
  rules.push_back(
      {{"train.reference"}, [](const RunConfig& run, const RunFacts&) {
         const bool is_idle =
             run.train.objective_info().needs_reference && !run.train.needs_reference();
         return is_idle ? std::string(": train.beta is 0, with which no reference model is read")
                        : std::string();
       }});
  rules.push_back({{"train.sampling_correction_max"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.sampling_correction == SamplingCorrection::kOff
                                ? std::string(" with train.sampling_correction off")
                                : std::string();
                   }});
  rules.push_back({{"train.teacher", "train.teacher_topk", "train.teacher_quant", "train.kd_beta",
                    "train.kd_temperature"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.objective_info().needs_teacher && run.train.kd_alpha == 0
                                ? std::string(
                                      " with train.kd_alpha 0: the loss is the cross-entropy alone")
                                : std::string();
                   }});
  rules.push_back(
      {{"train.rollouts.n", "train.rollouts.num_iterations", "train.rollouts.max_new_tokens",
        "train.rollouts.temperature", "train.rollouts.top_p", "train.rollouts.top_k",
        "train.rollouts.min_p", "train.rollouts.batch_size", "train.rollouts.chat",
        "train.rollouts.environment", "train.rollouts.max_turns",
        "train.rollouts.environment_timeout", "train.rollouts.num_samples", "train.rollouts.engine",
        "train.rollouts.engine_model", "train.rollouts.engine_token_variable",
        "train.rollouts.engine_timeout"},
       [](const RunConfig& run, const RunFacts&) {
         if (run.train.writes_answers()) return std::string();
         return std::string(
             run.train.objective_info().takes_own_answers
                 ? " without train.rollouts.share, which says how many examples get an "
                   "answer of the student's own"
                 : " without train.rollouts.reward, which says how answers are judged");
       }});
  rules.push_back(
      {{"train.epsilon", "train.epsilon_high", "train.delta", "train.importance_sampling_level"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.has_rollouts() && run.train.rollouts.num_iterations == 1
                    ? std::string(
                          " with train.rollouts and one step on each batch of answers, where every "
                          "ratio is 1 (train.rollouts.num_iterations)")
                    : std::string();
       }});
  rules.push_back(
      {{"train.sampling_correction", "train.sampling_correction_max"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.has_rollouts() && !run.train.rollouts.keeps_sampled_logps()
                    ? std::string(
                          " with train.rollouts whose answers are drawn from the model itself, at "
                          "temperature 1 without cuts: there is nothing to correct")
                    : std::string();
       }});
  rules.push_back({{"train.eval_batch_size"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.has_rollouts()
                                ? std::string(
                                      " with train.rollouts, of which evaluations write as many "
                                      "answers at a time as training (train.rollouts.batch_size)")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.environment"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.max_turns == 1
                                ? std::string(": train.rollouts.max_turns is 1")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.max_turns", "train.rollouts.environment_timeout"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.environment.empty()
                                ? std::string(" without train.rollouts.environment")
                                : std::string();
                   }});
  rules.push_back({{"train.rollouts.engine_model", "train.rollouts.engine_token_variable",
                    "train.rollouts.engine_timeout"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.rollouts.is_by_server()
                                ? std::string()
                                : std::string(
                                      " with train.rollouts.engine self, which asks no server");
                   }});
  rules.push_back({{"train.max_completion_length"},
                   [](const RunConfig& run, const RunFacts&) {
                     return run.train.has_rollouts()
                                ? std::string(
                                      " with train.rollouts, where it is the same as "
                                      "train.rollouts.max_new_tokens")
                                : std::string();
                   },
                   [](const RunConfig& asked, const RunConfig& run) {
                     return asked.train.max_completion_length == run.train.rollouts.max_new_tokens;
                   }});
  rules.push_back(
      {{"data.group_by_length", "data.bin_tokens"}, [](const RunConfig& run, const RunFacts&) {
         return run.train.writes_answers()
                    ? std::string(
                          " with train.rollouts, whose answers have no length before "
                          "they are written")
                    : std::string();
       }});
  rules.push_back(
      {{"train.teacher_topk", "train.teacher_quant"}, [](const RunConfig& run, const RunFacts&) {
         return teacher_kind(run.train) == TeacherKind::kScores
                    ? std::string(
                          ": train.teacher names scores, which sftrun score "
                          "has written with its own --topk")
                    : std::string();
       }});
  rules.push_back({{"train.f_alpha_divergence_coef"}, [](const RunConfig& run, const RunFacts&) {
                     return run.train.f_divergence == FDivergence::kAlpha
                                ? std::string()
                                : std::string(" unless train.f_divergence is alpha_divergence");
                   }});
  return rules;
}

/// Whether anything is drawn from `train.seed`.
std::string why_no_seed(const RunConfig& run, const RunFacts&) {
  const TuningConfig& tuning = run.tuning;
  const bool drops =
      tuning.trains_adapter() && tuning.lora.dropout > 0 && run.train.objective_info().has_dropout;
  const bool may_draw_head = run.train.objective_info().has_scores();
  if (drops || may_draw_head || run.train.neftune_noise_alpha || run.train.writes_answers())
    return "";
  const bool computes_start = tuning.lora.init == LoraInit::kPissa;
  if (tuning.trains_adapter() && tuning.lora.init_from.empty() && !computes_start) return "";
  const std::string run_without = !tuning.trains_adapter()
                                      ? fmt::format("tuning.mode {}", word_of(tuning.mode))
                                  : computes_start ? "a run with tuning.lora.init pissa"
                                                   : "a run from tuning.lora.init_from";
  return fmt::format(
      ": {} has no dropout and no new LoRA weights that are drawn; data.seed orders the examples",
      run_without);
}

bool warms_up(const TrainConfig& train) {
  return train.scheduler != Scheduler::kConstant &&
         (train.warmup_steps ? *train.warmup_steps > 0
                             : train.warmup_ratio.value_or(kWarmupRatio) > 0);
}

IdleRules rules_of_training() {
  const auto no_warmup = [](const RunConfig& asked, const RunConfig&) {
    return asked.train.warmup_ratio.value_or(0) == 0 && asked.train.warmup_steps.value_or(0) == 0;
  };
  return {
      {{"train.epochs"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.max_steps ? " with train.max_steps" : "";
       }},
      {{"train.warmup_ratio", "train.warmup_steps"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.scheduler == Scheduler::kConstant
                    ? " with train.scheduler constant; constant_with_warmup has a warm-up"
                    : "";
       },
       no_warmup},
      {{"train.warmup_from"},
       [](const RunConfig& run, const RunFacts&) {
         return warms_up(run.train) ? "" : " without warm-up";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.warmup_from == WarmupFrom::kFirstStep;
       }},
      {{"train.seed"}, why_no_seed},
      {{"train.ddp_find_unused_parameters"},
       [](const RunConfig&, const RunFacts&) {
         return ": parameters without a gradient are always allowed";
       }},
      {{"train.ddp_broadcast_buffers"},
       [](const RunConfig&, const RunFacts&) { return ": models have no buffers that change"; }},
      {{"train.save_steps"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.save_strategy == SaveStrategy::kEpoch
                    ? " unless train.save_strategy is steps"
                    : "";
       }},
      {{"train.save_in_background"},
       [](const RunConfig& run, const RunFacts&) {
         const TrainConfig& train = run.train;
         const bool saves = train.save_steps || train.save_strategy == SaveStrategy::kEpoch ||
                            train.load_best_model_at_end ||
                            parse_duration_s(train.save_every).value_or(1) > 0;
         return saves ? ""
                      : ": the only checkpoint is the last one, and nothing is computed after it";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.save_in_background == SaveInBackground::kOff;
       }},
  };
}

IdleRules rules_of_evaluation() {
  const auto no_evaluation = [](const RunConfig& run, const RunFacts&) {
    return why_no_evaluation(run);
  };
  return {
      {{"train.eval_batch_size", "train.eval_token_accuracy", "train.predict_with_generate"},
       no_evaluation},
      {{"train.eval_steps"},
       [](const RunConfig& run, const RunFacts&) {
         const EvalStrategy strategy = run.train.eval_strategy;
         return strategy == EvalStrategy::kNo || strategy == EvalStrategy::kEpoch
                    ? " unless train.eval_strategy is steps"
                    : "";
       }},
      {{"train.eval_on_start"},
       [](const RunConfig& run, const RunFacts&) {
         return has_validation_data(run) ? ""
                                         : " without validation data (data.val or data.val_split)";
       }},
      {{"train.generation_max_new_tokens", "train.generation_num_beams",
        "train.generation_batch_size", "train.generation_max_samples",
        "train.generation_time_budget"},
       [](const RunConfig& run, const RunFacts&) {
         if (run.train.predict_with_generate) return "";
         return run.train.writes_answers() ? " without train.predict_with_generate; train.rollouts "
                                             "has settings of its own for "
                                             "the answers that the run trains on"
                                           : " without train.predict_with_generate";
       }},
      {{"train.generation_time_budget"},
       [](const RunConfig& run, const RunFacts&) {
         return is_judged_by_answers(run.train)
                    ? fmt::format(
                          " with train.metric_for_best_model {}, which needs the answers of "
                          "every evaluation",
                          run.train.metric_for_best_model)
                    : "";
       }},
      {{"train.early_stopping_threshold"},
       [](const RunConfig& run, const RunFacts&) {
         return run.train.early_stopping_patience ? "" : " without train.early_stopping_patience";
       }},
      {{"train.greater_is_better"},
       [](const RunConfig& run, const RunFacts&) {
         const bool is_used = run.train.load_best_model_at_end ||
                              run.train.early_stopping_patience ||
                              !run.train.metric_for_best_model.empty();
         return is_used ? "" : " without train.metric_for_best_model";
       }},
  };
}

std::string on_cpu(const RunConfig&, const RunFacts& facts) {
  return facts.on_gpu == false ? " on a CPU" : "";
}
std::string on_one_process(const RunConfig&, const RunFacts& facts) {
  return facts.world_size == 1 ? " on one process" : "";
}

/// Whether weights that a device does not keep are brought to it.
bool brings_weights(const ParallelConfig& parallel, const RunFacts& facts) {
  const StrategyRow& strategy = strategy_row(parallel.strategy);
  const bool may_divide = facts.world_size != 1 && (strategy.strategy == Strategy::kAuto ||
                                                    strategy.level == ShardLevel::kWeights);
  const bool offloads =
      parallel.offload.base == Offload::kCpu || parallel.offload.params == Offload::kCpu;
  return may_divide || (offloads && facts.on_gpu != false);
}

/// The setting because of which gradients are summed unit by unit, in fp32; empty: none.
std::string sums_by_unit(const ParallelConfig& parallel, const RunFacts& facts) {
  if (level_of(parallel) != ShardLevel::kNone)
    return strategy_row(parallel.strategy).level
               ? fmt::format("parallel.strategy {}", word_of(parallel.strategy))
               : std::string("parallel.dp_shard (fsdp)");
  if (facts.on_gpu == false) return "";  // nothing is offloaded
  if (parallel.offload.params == Offload::kCpu) return "parallel.offload.params";
  return parallel.offload.base == Offload::kCpu ? "parallel.offload.base" : "";
}

/// Why no gradients are sent in buckets; empty: they are, or may be.
std::string why_no_buckets(const RunConfig& run, const RunFacts& facts, const char* instead) {
  const ParallelConfig& parallel = run.parallel;
  if (facts.world_size == 1) return " on one process";
  if (parallel.device_map || parallel.strategy == Strategy::kDeviceMap)
    return " with parallel.device_map, which is one process";
  const Axes& axes = parallel.axes;
  if (const std::string setting = sums_by_unit(parallel, facts); !setting.empty())
    return fmt::format(" with {}, which sums gradients {}", setting, instead);
  return facts.world_size && axes.divides_model() && axes.dp_replicate == 1
             ? fmt::format(
                   " with parallel.strategy {} of all processes: no gradients are "
                   "summed over copies",
                   word_of(parallel.strategy))
             : "";
}

/// Why no micro-batch is captured (model/pass_graphs.cpp); empty: it is, or may be.
std::string why_no_graphs(const RunConfig& run, const RunFacts& facts) {
  const ParallelConfig& parallel = run.parallel;
  if (facts.on_gpu == false) return " on a CPU";
  if (run.tuning.backend != TuningBackend::kFused)
    return fmt::format(" with tuning.backend {}", word_of(run.tuning.backend));
  const ObjectiveInfo& objective = run.train.objective_info();
  if (objective.is_of_documents() || objective.needs_teacher) return with_objective(run);
  if (parallel.offload.activations == Offload::kCpu) return " with parallel.offload.activations";
  if (parallel.fetch == Fetch::kPerStep) return " with parallel.fetch per_step";
  const std::string setting = sums_by_unit(parallel, facts);
  if (!setting.empty()) return " with " + setting;
  if (const std::string divided = model_division_setting(parallel); !divided.empty())
    return " with " + divided;
  const bool overlaps = parallel.strategy == Strategy::kDdp && !run.tuning.trains_adapter();
  return overlaps ? fmt::format(" with tuning.mode {} on several devices", word_of(run.tuning.mode))
                  : "";
}

IdleRules rules_of_devices() {
  return {
      {{"model.attention", "parallel.offload.optimizer", "parallel.offload.activations",
        "parallel.offload.base", "parallel.offload.params"},
       on_cpu},
      {{"parallel.device_map"},
       [](const RunConfig& run, const RunFacts& facts) {
         return run.parallel.pp.value_or(1) == 1 ? on_cpu(run, facts) : "";
       }},
      {{"parallel.strategy"},
       [](const RunConfig& run, const RunFacts& facts) {
         const bool is_whole = run.parallel.strategy == Strategy::kDeviceMap &&
                               run.parallel.pp.value_or(1) == 1;  // else stages are on the CPU
         return is_whole ? on_cpu(run, facts) : "";
       }},
      {{"model.attention"},
       [](const RunConfig& run, const RunFacts&) {
         return run.tuning.backend == TuningBackend::kFused
                    ? ""
                    : fmt::format(" with tuning.backend {}", word_of(run.tuning.backend));
       }},
      {{"train.cuda_graphs"},
       why_no_graphs,
       [](const RunConfig& asked, const RunConfig&) {
         return asked.train.cuda_graphs == CudaGraphs::kOff;
       }},
      {{"parallel.offload.base"},
       [](const RunConfig& run, const RunFacts&) {
         return run.tuning.mode == TuningMode::kFull ? " with tuning.mode full: no weight is frozen"
                                                     : "";
       }},
  };
}

/// Why nothing is divided over the ranks of `dp_shard`; empty: something is, or may be.
std::string why_no_shards(const RunConfig& run, const RunFacts& facts) {
  const Axes& axes = run.parallel.axes;
  if (facts.world_size.value_or(1) == 1 || !axes.has_shards() || axes.dp_shard > 1) return "";
  return fmt::format(": parallel.dp_shard is 1 on {} processes ({}), so nothing is sharded",
                     *facts.world_size, describe(axes));
}

IdleRules rules_of_processes() {
  const auto on_one_without_map = [](const RunConfig& run, const RunFacts& facts) {
    return run.parallel.strategy == Strategy::kDeviceMap ? "" : on_one_process(run, facts);
  };
  IdleRules rules = {
      {{"parallel.strategy"},
       on_one_without_map,
       [](const RunConfig& asked, const RunConfig&) {  // one copy of the model is what ddp has, too
         return asked.parallel.strategy == Strategy::kDdp ||
                asked.parallel.strategy == Strategy::kSingle;
       }},
      {{"parallel.strategy"}, why_no_shards},
  };
  for (const AxisRow& row : axis_rows())
    rules.push_back(
        {{row.key},
         row.axis == Axis::kPp ? decltype(IdleRule::reason)(on_one_without_map) : on_one_process,
         [&row](const RunConfig& asked, const RunConfig&) {
           return (asked.parallel.*row.asked).value_or(1) == 1;
         }});
  return rules;
}

IdleRules rules_of_communication() {
  return {
      {{"parallel.backend", "parallel.timeout", "parallel.stall_after"}, on_one_process},
      {{"parallel.stall_after"},
       [](const RunConfig& run, const RunFacts&) {
         const auto stall = parse_duration_s(run.parallel.stall_after);
         const auto timeout = parse_duration_s(run.parallel.timeout);
         return stall && timeout && *stall > *timeout / 3 ? " beyond a third of parallel.timeout"
                                                          : "";
       }},
      {{"parallel.fetch"},
       [](const RunConfig& run, const RunFacts& facts) {
         return brings_weights(run.parallel, facts)
                    ? ""
                    : ": each device keeps all weights that it uses";
       },
       [](const RunConfig& asked, const RunConfig&) {
         return asked.parallel.fetch == Fetch::kPerMicroBatch;
       }},
      {{"train.ddp_comm_hook"},
       [](const RunConfig& run, const RunFacts& facts) {
         return why_no_buckets(run, facts, "in fp32");
       }},
      {{"train.ddp_bucket_cap_mb"},
       [](const RunConfig& run, const RunFacts& facts) {
         return why_no_buckets(run, facts, "unit by unit");
       },
       [](const RunConfig& asked, const RunConfig& run) {  // for the case that auto is ddp
         return asked.parallel.strategy == Strategy::kAuto &&
                level_of(run.parallel) != ShardLevel::kNone;
       }},
  };
}

IdleRules rules_of_callbacks() {
  return {
      {{"callbacks.events", "callbacks.timeout"},
       [](const RunConfig& run, const RunFacts&) {
         return run.callbacks.command.empty() ? " without callbacks.command" : "";
       }},
      {{"callbacks.command"},
       [](const RunConfig& run, const RunFacts&) {
         const auto& events = run.callbacks.events;
         if (events.empty()) return std::string(": callbacks.events is empty");
         const bool needs_evaluation = events == std::vector<std::string>{"evaluation"};
         return needs_evaluation ? why_no_evaluation(run) : "";
       }},
  };
}

IdleRules rules_of_adapters() {
  std::vector<std::string> keys;
  const nlohmann::ordered_json settings = to_json(RunConfig{});
  for (const auto& [name, value] : settings["tuning"]["lora"].items())
    keys.push_back("tuning.lora." + name);
  return {{std::move(keys),
           [](const RunConfig& run, const RunFacts&) {
             return run.tuning.trains_adapter()
                        ? ""
                        : fmt::format(" with tuning.mode {}", word_of(run.tuning.mode));
           },
           nullptr, "tuning.lora"},
          {{"tuning.lora.dropout"}, [](const RunConfig& run, const RunFacts&) {
             const bool is_idle =
                 !run.train.objective_info().has_dropout && run.tuning.trains_adapter();
             return is_idle ? with_objective(run) + ", as in TRL" : "";
           }}};
}

const IdleRules& idle_rules() {
  static const IdleRules rules = [] {
    IdleRules all;
    for (const IdleRules& part :
         {rules_of_adapters(), rules_of_data(), rules_of_objectives(), rules_of_training(),
          rules_of_optimizers(), rules_of_evaluation(), rules_of_devices(), rules_of_processes(),
          rules_of_communication(), rules_of_callbacks()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rules;
}

/// A contradiction is an error (validate/), and so no reason to be here.
const std::set<std::string>& always_effective() {
  static const std::set<std::string> keys = {
      "model.name",
      "model.max_seq_len",
      "model.dtype",
      "model.chat_template",  // it is saved with the result
      "model.projectors",     // data without features are an error
      "tuning.mode",
      "tuning.backend",
      "tuning.quant",
      "tuning.trainable",
      "tuning.train_parts",  // a model without images is an error
      "data.train",
      "data.val_split",  // records that are held out do not train
      "data.fields",
      "data.shuffle",
      "data.group_by_length",
      "data.streaming",
      "data.chat_template_kwargs",
      "data.too_long",
      "data.bad_records",
      "data.image_root",        // the records decide
      "data.max_image_pixels",  // the model's image processor decides
      "data.image_longest_edge",
      "train.objective",
      "train.max_steps",
      "train.batch_size",
      "train.grad_accum",
      "train.global_batch_size",
      "train.learning_rate",
      "train.part_learning_rates",
      "train.scheduler",
      "train.optimizer",
      "train.weight_decay",
      "train.loraplus_lr_ratio",
      "train.neftune_noise_alpha",
      "train.max_grad_norm",
      "train.bf16",
      "train.fp16",
      "train.gradient_checkpointing",
      "train.eval_strategy",
      "train.load_best_model_at_end",
      "train.metric_for_best_model",
      "train.early_stopping_patience",
      "train.save_strategy",
      "train.save_every",
      "train.save_total_limit",
      "train.longest_batch_first",
      "train.checkpoint_format",  // whole is what all others write, too
      "train.logging_steps",
      "train.dataloader_num_workers",
      "train.dataloader_pin_memory",  // false is what a CPU does, too
      "parallel.accelerate",
      "parallel.deepspeed",
      "output.dir",
      "output.tensorboard",
  };
  return keys;
}

/// Their readers warn or refuse: plan::idle_quant_keys, the search for the model, spec::aux_loss_coef.
const std::set<std::string>& decided_by_model() {
  static const std::set<std::string> keys = {
      "model.revision",          "tuning.double_quant", "tuning.quant_block_size",
      "tuning.quant_embeddings", "tuning.skip_modules", "train.router_aux_loss_coef"};
  return keys;
}

std::string with_place(const std::string& text, const std::string& place) {
  return place.empty() ? text : fmt::format("{} ({})", text, place);
}

/// Finds the idle settings of one run.
class IdleSearch {
 public:
  IdleSearch(const LoadedConfig& loaded, const RunConfig& run, const RunFacts& facts)
      : loaded_(loaded), run_(run), facts_(facts), asked_(to_json(loaded.config)) {}

  std::vector<IdleSetting> find() {
    for (const IdleRule& rule : idle_rules()) {
      std::vector<std::string> keys;
      for (const std::string& key : rule.keys)
        if (is_asked(key, rule.also_default) && !found_keys_.contains(key)) keys.push_back(key);
      if (keys.empty() || (rule.is_implied && rule.is_implied(loaded_.config, run_))) continue;
      const std::string reason = rule.reason(run_, facts_);
      if (!reason.empty()) add(rule, keys, reason);
    }
    return std::move(found_);
  }

 private:
  /// Files of resolved values set every key, most of them to defaults.
  bool is_asked(const std::string& key, bool also_default) const {
    static const nlohmann::ordered_json defaults = to_json(RunConfig{});
    const bool is_set =
        std::any_of(loaded_.places.begin(), loaded_.places.end(), [&](const auto& place) {
          return place.first == key || place.first.starts_with(key + ".");
        });
    if (is_set && also_default) return true;
    return is_set && asked_.at(pointer_to(key)) != defaults.at(pointer_to(key));
  }

  void add(const IdleRule& rule, const std::vector<std::string>& keys, const std::string& reason) {
    found_keys_.insert(keys.begin(), keys.end());
    if (!rule.common_name.empty()) {
      std::vector<std::string> leaves;
      for (const std::string& key : keys) leaves.push_back(key.substr(key.rfind('.') + 1));
      const std::string text =
          fmt::format("{} ({}) has no effect{}", rule.common_name, join(leaves, ", "), reason);
      found_.push_back({keys.front(), with_place(text, loaded_.place_of(keys.front()))});
      return;
    }
    for (const std::string& key : keys) {
      const std::string& name = rule.part.empty() ? key : rule.part;
      found_.push_back({key, with_place(fmt::format("{} has no effect{}", name, reason),
                                        loaded_.place_of(key))});
    }
  }

  const LoadedConfig& loaded_;
  const RunConfig& run_;
  const RunFacts& facts_;
  nlohmann::ordered_json asked_;
  std::vector<IdleSetting> found_;
  std::set<std::string> found_keys_;
};

}  // namespace

bool has_effect(std::string_view key, const RunConfig& run) {
  return std::none_of(idle_rules().begin(), idle_rules().end(), [&](const IdleRule& rule) {
    const bool is_about = std::find(rule.keys.begin(), rule.keys.end(), key) != rule.keys.end();
    return is_about && !rule.reason(run, {}).empty();
  });
}

std::optional<Effect> effect_of(const std::string& key) {
  if (always_effective().contains(key)) return Effect::kAlways;
  if (decided_by_model().contains(key)) return Effect::kByModel;
  const bool has_rule =
      std::any_of(idle_rules().begin(), idle_rules().end(), [&](const IdleRule& rule) {
        return std::find(rule.keys.begin(), rule.keys.end(), key) != rule.keys.end();
      });
  return has_rule ? std::optional(Effect::kByRules) : std::nullopt;
}

std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded) {
  return IdleSearch(loaded, loaded.config, {}).find();
}

std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded, const RunConfig& run,
                                       const RunFacts& facts) {
  const std::vector<IdleSetting> known = idle_settings(loaded);
  std::vector<IdleSetting> found = IdleSearch(loaded, run, facts).find();
  std::erase_if(found, [&](const IdleSetting& setting) {
    return std::any_of(known.begin(), known.end(),
                       [&](const IdleSetting& other) { return other.key == setting.key; });
  });
  return found;
}

}  // namespace sftrun::config
