#include "trl_preference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "preference.h"
#include "sftrun/core/strings.h"
#include "templates.h"

namespace sftrun::foreign {
namespace {

using config::Objective;

constexpr auto kTrlKeysOfKto =
    std::to_array<std::string_view>({"desirable_weight", "undesirable_weight"});
constexpr auto kTrlKeysOfCpo =
    std::to_array<std::string_view>({"cpo_alpha", "simpo_gamma", "alpha"});
constexpr auto kTrlKeysOfDpo = std::to_array<std::string_view>(
    {"loss_weights", "ld_alpha", "f_divergence_type", "f_alpha_divergence_coef", "discopop_tau",
     "use_weighting", "reference_free", "rpo_alpha"});
/// That several of them have, and SFTConfig has not.
constexpr auto kTrlKeysOfPreference = std::to_array<std::string_view>(
    {"beta", "max_prompt_length", "precompute_ref_log_probs", "precompute_ref_batch_size",
     "ref_model_init_kwargs", "sync_ref_model", "label_smoothing", "disable_dropout"});

constexpr auto kTrlLossesOfKto = std::to_array<std::string_view>({"kto", "apo_zero_unpaired"});
constexpr auto kTrlLossesOfCpo = std::to_array<std::string_view>({"simpo", "alphapo"});
/// Besides those that there are here.
constexpr auto kTrlLossesOfDpo =
    std::to_array<std::string_view>({"aot", "aot_unpaired", "aot_pair", "kto_pair"});

/// Keys of SFTConfig that DPOConfig, KTOConfig and RewardConfig have not.
constexpr auto kTrlKeysOfSft = std::to_array<std::string_view>(
    {"packing", "packing_strategy", "eval_packing", "padding_free", "completion_only_loss",
     "assistant_only_loss", "dataset_text_field", "dataset_kwargs", "max_seq_length", "loss_type"});
/// Keys of RewardConfig that the configurations of the other preference trainers have not.
constexpr auto kTrlKeysOfTexts =
    std::to_array<std::string_view>({"chat_template_path", "eos_token"});
/// Keys of DistillationConfig and GOLDConfig that GKDConfig has not.
constexpr auto kTrlKeysOfOtherTeachers = std::to_array<std::string_view>(
    {"max_completion_length", "teacher_model_revision", "teacher_tokenizer_name_or_path",
     "use_uld_loss", "use_vllm", "num_generations"});

struct TrlTrainer {
  Objective objective;
  std::string_view config;  ///< its class of settings
  std::span<const std::string_view> losses, keys;
  /// A key that tells it by its value, or by what is not beside it. nullptr: there is none
  std::optional<SourceKey> (*sign)(const Conversion&) = nullptr;
};

constexpr auto kTrlKeysOfReward = std::to_array<std::string_view>({"center_rewards_coefficient"});

constexpr auto kTrlLossesOfGrpo = std::to_array<std::string_view>({"sapo", "luspo", "vespo"});
constexpr auto kTrlKeysOfGrpo = std::to_array<std::string_view>(
    {"num_generations", "epsilon", "epsilon_high", "delta", "scale_rewards",
     "importance_sampling_level", "mask_truncated_completions", "reward_funcs", "reward_weights",
     "num_iterations", "steps_per_generation"});
constexpr auto kTrlKeysOfGkd = std::to_array<std::string_view>({"lmbda", "seq_kd"});

std::optional<SourceKey> first_found(const Conversion& conversion,
                                     std::span<const std::string_view> names) {
  for (const std::string_view name : names)
    if (auto key = conversion.find(name)) return key;
  return std::nullopt;
}

/// An adapter of a model with a head of scores.
std::optional<SourceKey> sign_of_reward(const Conversion& conversion) {
  auto key = conversion.find("lora_task_type");
  return key && ascii_lower(key->value.text) == "seq_cls" ? key : std::nullopt;
}

std::optional<SourceKey> sign_of_gkd(const Conversion& conversion) {
  if (first_found(conversion, kTrlKeysOfOtherTeachers)) return std::nullopt;
  return conversion.find("teacher_model_name_or_path");
}

/// CPOConfig, ORPOConfig and configurations with a teacher have it, too.
std::optional<SourceKey> sign_of_grpo(const Conversion& conversion) {
  constexpr auto kOthers = std::to_array<std::string_view>(
      {"cpo_alpha", "simpo_gamma", "alpha", "lmbda", "teacher_model_name_or_path"});
  if (first_found(conversion, kOthers)) return std::nullopt;
  return conversion.find("max_completion_length");
}

constexpr auto kTrlTrainers = std::to_array<TrlTrainer>({
    {Objective::kReward, "RewardConfig", {}, kTrlKeysOfReward, sign_of_reward},
    {Objective::kGrpo, "GRPOConfig", kTrlLossesOfGrpo, kTrlKeysOfGrpo, sign_of_grpo},
    {Objective::kDistill, "GKDConfig", {}, kTrlKeysOfGkd, sign_of_gkd},
    {Objective::kKto, "KTOConfig", kTrlLossesOfKto, kTrlKeysOfKto},
    {Objective::kCpo, "CPOConfig", kTrlLossesOfCpo, kTrlKeysOfCpo},
    {Objective::kDpo, "DPOConfig", kTrlLossesOfDpo, kTrlKeysOfDpo},
});

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Whether `loss_type` is for this trainer. A loss that CPO has, too, is CPO's beside its keys.
bool is_loss_of_trainer(const Conversion& conversion, const TrlTrainer& trainer,
                        const Value& loss_type) {
  const std::vector<std::string> names = loss_names(loss_type);
  const auto is_here = [](const std::string& name, Objective objective) {
    const config::PreferenceLossInfo* loss = config::find_preference_loss(name);
    return loss != nullptr && config::objective_info(objective).takes_loss(loss->loss);
  };
  const bool is_of_cpo = names.size() == 1 && is_here(names.front(), Objective::kCpo) &&
                         first_found(conversion, kTrlKeysOfCpo);
  return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    if (is_one_of(name, trainer.losses)) return true;
    return is_here(name, trainer.objective) && is_of_cpo == (trainer.objective == Objective::kCpo);
  });
}

/// The first key that this trainer has, and the others have not.
std::optional<SourceKey> key_of_trainer(const Conversion& conversion, const TrlTrainer& trainer) {
  auto loss = conversion.find("loss_type");
  if (loss && is_loss_of_trainer(conversion, trainer, loss->value)) return loss;
  if (auto key = first_found(conversion, trainer.keys)) return key;
  return trainer.sign == nullptr ? std::nullopt : trainer.sign(conversion);
}

/// Whether `disable_dropout` is the only key that tells preference training, beside one of texts that
/// RewardConfig alone has with it.
bool looks_like_reward(const Conversion& conversion) {
  const auto key = first_found(conversion, kTrlKeysOfPreference);
  return key && key->name == "disable_dropout" && first_found(conversion, kTrlKeysOfTexts);
}

/// null: the file is for SFT.
const TrlTrainer* trainer_of_trl(const Conversion& conversion) {
  for (const TrlTrainer& trainer : kTrlTrainers)
    if (key_of_trainer(conversion, trainer)) return &trainer;
  if (looks_like_reward(conversion)) return &kTrlTrainers.front();
  return first_found(conversion, kTrlKeysOfPreference) ? &kTrlTrainers.back() : nullptr;
}

bool is_on_in_trl(const Conversion& conversion, const char* name) {
  const auto key = conversion.find(name);
  return key && !is_off(key->value);
}

/// The losses of DPO, or those of CPO. The first is the default.
std::vector<std::string> losses_of_trl(const Conversion& conversion) {
  const auto key = conversion.find("loss_type");
  return key ? loss_names(key->value) : std::vector<std::string>{"sigmoid"};
}

/// `rpo_alpha` of TRL before 1.0, the weight of the cross-entropy. 0: none
double cross_entropy_of_trl(Conversion& conversion) {
  const auto key = conversion.find("rpo_alpha");
  if (!key) return 0;
  const auto weight = parse_double(key->value.text);
  if (!weight || *weight < 0)
    conversion.refuse(*key, fmt::format("`rpo_alpha` is {}", describe(key->value)),
                      "write a number of at least 0");
  return std::max(weight.value_or(0), 0.0);
}

/// @param key that names the losses, or their weights
void set_losses_of_trl(Conversion& conversion, const SourceKey& key) {
  const ObjectiveInfo& objective = trl_objective(conversion);
  auto losses = weighted_losses(conversion, losses_of_trl(conversion),
                                conversion.find("loss_weights"), "loss_type");
  if (!losses) return;
  const double sft = objective.needs_reference ? cross_entropy_of_trl(conversion) : 0;
  if (sft > 0) add_loss(*losses, "sft", sft);
  set_losses(conversion, key, objective, *losses);
}

/// Two keys of different trainers.
void refuse_mixed_trainers(Conversion& conversion) {
  const TrlTrainer* first = nullptr;
  for (const TrlTrainer& trainer : kTrlTrainers) {
    const auto key = key_of_trainer(conversion, trainer);
    if (!key) continue;
    if (first != nullptr) {
      const auto other = key_of_trainer(conversion, *first);
      return conversion.refuse(*other, *key,
                               fmt::format("`{}` is for {}, and `{}` for {}", other->name,
                                           first->config, key->name, trainer.config),
                               "keep the keys of one trainer");
    }
    first = &trainer;
  }
}

void set_objective_of_trl(Conversion& conversion, const TrlTrainer& trainer) {
  const std::string name(trl_objective(conversion).name);
  if (const auto key = key_of_trainer(conversion, trainer))
    return conversion.set(*key, "train.objective", name);
  const auto shared = first_found(conversion, kTrlKeysOfPreference);
  conversion.set(*shared, "train.objective", name);
  if (looks_like_reward(conversion))
    return conversion.note_lost(
        *shared, fmt::format("beside `{}` RewardConfig has it, and reward training is assumed: set "
                             "`train.objective` for others: dpo, kto, cpo or orpo",
                             first_found(conversion, kTrlKeysOfTexts)->name));
  conversion.note_lost(*shared,
                       "it does not tell which trainer the file is for, and DPO is assumed: set "
                       "`train.objective` for others: reward, kto, cpo or orpo");
}

/// A file with keys that all trainers have, alone.
void take_sft(Conversion& conversion) {
  conversion.set_default("train.objective", "sft");
  if (first_found(conversion, kTrlKeysOfSft)) return;
  conversion.not_carried.push_back(
      {"trainer",
       "no key tells which trainer the file is for, and SFTTrainer is assumed: set "
       "`train.objective` for others, such as reward or dpo",
       conversion.file().string()});
}

}  // namespace

const ObjectiveInfo& trl_objective(const Conversion& conversion) {
  const TrlTrainer* trainer = trainer_of_trl(conversion);
  if (trainer == nullptr) return config::objective_info(Objective::kSft);
  Objective objective = trainer->objective;
  const std::vector<std::string> names = losses_of_trl(conversion);
  if (objective == Objective::kCpo && is_one_of(names.empty() ? "" : names[0], kTrlLossesOfCpo))
    objective = Objective::kSimpo;
  if (objective == Objective::kDpo && is_on_in_trl(conversion, "reference_free"))
    objective = Objective::kCpo;
  return config::objective_info(objective);
}

void trl_task_type(Conversion& conversion, const SourceKey& key) {
  if (sign_of_reward(conversion) && trl_objective(conversion).has_scores())
    return;  // the objective
  conversion.note_no_meaning(key, "`train.objective` says what the model computes");
}

void trl_loss(Conversion& conversion, const SourceKey& key) {
  if (key.value.kind == Value::Kind::kScalar && key.value.text.empty()) return;
  const ObjectiveInfo& objective = trl_objective(conversion);
  if (!objective.losses.empty()) return set_losses_of_trl(conversion, key);
  const Value& value = single_value(key.value);
  const std::string loss = ascii_lower(value.text);
  if (objective.is_cross_entropy && (loss == "nll" || loss == "chunked_nll"))
    return conversion.note_no_meaning(key, "the loss is the cross entropy of the labelled tokens");
  if (loss == objective.name)
    return conversion.note_no_meaning(
        key, fmt::format("it is the loss of `train.objective: {}`", objective.name));
  refuse_objective(conversion, {.name = key.name,
                                .value = value,
                                .place = key.place,
                                .value_place = key.value_place,
                                .source = key.source});
}

void trl_smoothing(Conversion& conversion, const SourceKey& key) {
  const ObjectiveInfo& objective = trl_objective(conversion);
  const std::vector<std::string> losses = losses_of_trl(conversion);
  if (objective.objective == Objective::kDpo) return set_smoothing_of_dpo(conversion, key, losses);
  const bool is_smoothed =
      objective.losses.empty() || losses == std::vector<std::string>{"sigmoid"};
  const bool is_read = objective.reads("train.label_smoothing") && is_smoothed;
  if (!is_read)
    conversion.note_no_meaning(
        key, fmt::format("the loss of {} has no label smoothing", objective.name));
  else if (!is_off(key.value))
    conversion.set(key, "train.label_smoothing", key.value);
}

void trl_beta(Conversion& conversion, const SourceKey& key) {
  const bool is_distilled = trl_objective(conversion).needs_teacher;
  conversion.set(key, is_distilled ? "train.kd_beta" : "train.beta", key.value);
}

namespace {

/// GKDConfig's, also where the file does not say it.
double share_of_gkd(const Conversion& conversion) {
  constexpr double kShare = 0.5;
  return parse_double(conversion.text_of("lmbda")).value_or(kShare);
}

/// Of answers that a distilled student writes itself, or that GRPO judges.
void set_of_answers(Conversion& conversion, const SourceKey& key, std::string_view field) {
  if (trl_objective(conversion).needs_teacher && share_of_gkd(conversion) == 0)
    return conversion.note_no_meaning(key,
                                      "it is of answers that the student writes, and `lmbda` is 0");
  conversion.set(key, field, key.value);
}

}  // namespace

void trl_temperature(Conversion& conversion, const SourceKey& key) {
  set_of_answers(conversion, key, "train.rollouts.temperature");
}

/// vLLM and transformers write 0 or -1 for all tokens.
void trl_top_k(Conversion& conversion, const SourceKey& key) {
  const auto value = parse_double(key.value.text);
  if (is_off(key.value) || (value && *value <= 0))
    return conversion.note_no_meaning(key, "answers are drawn from all tokens");
  set_of_answers(conversion, key, "train.rollouts.top_k");
}

void trl_new_tokens(Conversion& conversion, const SourceKey& key) {
  set_of_answers(conversion, key, "train.rollouts.max_new_tokens");
}

void trl_completion_length(Conversion& conversion, const SourceKey& key) {
  if (trl_objective(conversion).reads_samples())
    return conversion.set(key, "train.rollouts.max_new_tokens", key.value);
  conversion.note_lost(key,
                       "answers have no limit of their own here: `model.max_seq_len` is that of "
                       "prompt and answer together");
}

void trl_share(Conversion& conversion, const SourceKey& key) {
  if (share_of_gkd(conversion) == 0)
    return conversion.note_no_meaning(key, "the student writes no answers");
  conversion.set(key, "train.rollouts.share", key.value);
}

namespace {

/// An error if a key beside `key`, which names a teacher or its part, is not one of GKDConfig.
void refuse_other_teachers(Conversion& conversion, const SourceKey& key) {
  const auto other = first_found(conversion, kTrlKeysOfOtherTeachers);
  if (!other) return;
  conversion.refuse(
      key,
      fmt::format("`{}` beside `{}` is for DistillationTrainer or GOLDTrainer, which are not "
                  "translated",
                  key.name, other->name),
      fmt::format("write a run with `train.objective: distill`, the teacher as `train.teacher` and "
                  "`train.rollouts.share` (docs/distillation.md); or, for GKDTrainer, remove {}",
                  other->name));
}

}  // namespace

void trl_teacher(Conversion& conversion, const SourceKey& key) {
  if (trl_objective(conversion).needs_teacher)
    return conversion.set(key, "train.teacher", key.value);
  refuse_other_teachers(conversion, key);
}

namespace {

/// GKDTrainer's loss is the divergence alone, and its temperature that of sampling alone.
void finish_gkd(Conversion& conversion, const SourceKey& key) {
  const auto set_default = [&](std::string_view field, std::string_view text) {
    if (!conversion.has(field)) conversion.set_default(field, text);
  };
  const bool is_named = conversion.has("train.teacher");
  const bool writes_answers = share_of_gkd(conversion) > 0;
  set_default("train.kd_alpha", "1");
  set_default("train.kd_beta", "0.5");
  set_default("train.teacher", "teacher");
  if (writes_answers) {
    set_default("train.rollouts.share", "0.5");
    set_default("train.rollouts.temperature", "0.9");
    set_default("train.rollouts.max_new_tokens", "128");
  }
  if (writes_answers && !conversion.find("lmbda"))
    conversion.not_carried.push_back(
        {"lmbda",
         "the file has none, and GKDConfig's default, 0.5, is taken: half of the examples of a "
         "step "
         "get an answer that the student writes (`train.rollouts.share`); remove `train.rollouts` "
         "to train on the data alone",
         conversion.file().string()});
  if (is_named) return;
  conversion.note_lost(
      key, writes_answers
               ? "name the teacher's model in `train.teacher` (docs/distillation.md)"
               : "let the teacher score the data before training: `sftrun score --topk 64 "
                 "--output teacher`, or name its model in `train.teacher` (docs/distillation.md)");
}

}  // namespace

void trl_sampling_correction(Conversion& conversion, const SourceKey& key) {
  if (parse_bool(conversion.text_of("vllm_importance_sampling_correction")) == false)
    return conversion.note_no_meaning(key, "vllm_importance_sampling_correction is off");
  conversion.set(key, "train.sampling_correction", key.value);
}

namespace {

/// A server reports log-probabilities of the model's own distribution, from which answers must be drawn.
void note_distribution_of_server(Conversion& conversion) {
  if (!trl_objective(conversion).reads_samples()) return;
  constexpr std::array<std::pair<const char*, double>, 4> kNeutral = {
      {{"temperature", 1}, {"top_p", 1}, {"top_k", 0}, {"min_p", 0}}};
  for (const auto& [name, neutral] : kNeutral) {
    const auto key = conversion.find(name);
    const auto value = key ? parse_double(key->value.text) : std::nullopt;
    if (!value || *value == neutral) continue;
    conversion.note_lost(*key,
                         "a server's answers must be drawn from the model's own distribution: "
                         "remove it from `train.rollouts`, or use `engine: self` (docs/grpo.md)");
  }
}

}  // namespace

void trl_vllm(Conversion& conversion, const SourceKey& key) {
  const bool asks_server =
      !is_off(key.value) && ascii_lower(conversion.text_of("vllm_mode")) == "server";
  if (!asks_server)  // TRL's default is a vLLM within the trainer
    return conversion.note_no_meaning(key, "the model that trains writes the answers");
  const auto or_else = [&](const char* name, const char* usual) {
    const std::string text = conversion.text_of(name);
    return text.empty() ? std::string(usual) : text;
  };
  std::string url = conversion.text_of("vllm_server_base_url");
  if (url.empty()) {
    const std::string host = or_else("vllm_server_host", "0.0.0.0");
    url = fmt::format("http://{}:{}", host == "0.0.0.0" ? "127.0.0.1" : host,
                      or_else("vllm_server_port", "8000"));
  }
  while (url.ends_with('/')) url.pop_back();
  conversion.set(key, "train.rollouts.engine", url + "/v1");
  note_distribution_of_server(conversion);
  conversion.note_lost(key,
                       "`trl vllm-serve` has other requests than OpenAI's: start `vllm serve` with "
                       "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or `sftrun serve "
                       "--allow-adapter-updates` (docs/grpo.md)");
}

void trl_sampling(Conversion& conversion, const SourceKey& key) {
  const std::string word = ascii_lower(key.value.text);
  if (word == "group_by_length") return conversion.set(key, "data.group_by_length", "true");
  if (word == "sequential" || word == "random")
    return conversion.set(key, "data.shuffle", word == "random" ? "true" : "false");
  conversion.note_unused(key,
                         fmt::format("`{}` is {}; known values: random, sequential, "
                                     "group_by_length",
                                     key.name, describe(key.value)),
                         "data.shuffle");
}

void trl_precompute(Conversion& conversion, const SourceKey& key) {
  set_precomputed_reference(conversion, key, &trl_objective(conversion));
}

void trl_dropout(Conversion& conversion, const SourceKey& key) {
  if (trl_objective(conversion).needs_teacher) {
    const auto adapters = conversion.find("lora_dropout");
    if (!is_off(key.value) && adapters && parse_double(adapters->value.text).value_or(0) > 0)
      return conversion.note_lost(*adapters,
                                  "GKDTrainer turns it off (`disable_dropout`): set "
                                  "`tuning.lora.dropout: 0`");
    return conversion.note_no_meaning(key, "`tuning.lora.dropout` says it");
  }
  constexpr double kDropout = 0.05;  // ModelConfig.lora_dropout
  const double dropout = parse_double(conversion.text_of("lora_dropout")).value_or(kDropout);
  if (is_off(key.value) && is_on_in_trl(conversion, "use_peft") && dropout > 0)
    return conversion.note_lost(key, "preference training has no dropout here");
  conversion.note_no_meaning(key, "preference training has no dropout here");
}

bool has_dropout_in_trl(const Conversion& conversion) {
  if (!trl_objective(conversion).needs_teacher) return true;
  const auto disabled = conversion.find("disable_dropout");  // GKDConfig's default: true
  return disabled && is_off(disabled->value);
}

void finish_objective_of_trl(Conversion& conversion) {
  const TrlTrainer* trainer = trainer_of_trl(conversion);
  if (trainer == nullptr) return take_sft(conversion);
  refuse_mixed_trainers(conversion);
  set_objective_of_trl(conversion, *trainer);
  const Objective objective = trl_objective(conversion).objective;
  if (objective == Objective::kSimpo && !conversion.has("train.cpo_alpha"))
    conversion.set_default("train.cpo_alpha", "1");
  if (objective == Objective::kDistill) {
    const SourceKey key = *key_of_trainer(conversion, *trainer);
    refuse_other_teachers(conversion, key);
    finish_gkd(conversion, key);
  }
  if (objective == Objective::kKto && !conversion.find("train_sampling_strategy"))
    conversion.set_default("data.shuffle", "false");
  if (const auto free = conversion.find("reference_free"); free && objective == Objective::kCpo)
    conversion.set(*free, "train.cpo_alpha", fmt::format("{}", cross_entropy_of_trl(conversion)));
  if (const auto type = conversion.find("f_divergence_type");
      type && ascii_lower(type->value.text) == "alpha_divergence")
    conversion.note_lost(
        *type,
        "`train.f_alpha_divergence_coef` is the coefficient of TRL 1.16; where the "
        "file is for TRL 0.24, it is 1 minus that of the file");
  constexpr auto kWeights = std::to_array<std::string_view>({"loss_weights", "rpo_alpha"});
  const auto weights = first_found(conversion, kWeights);
  if (weights && !conversion.find("loss_type")) set_losses_of_trl(conversion, *weights);
}

}  // namespace sftrun::foreign
