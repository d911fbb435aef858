#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/preference_losses.h"
#include "sftrun/core/rows.h"

/// The objectives of training: one row each, with all properties that need no LibTorch. Nothing else
/// asks which objective a run has; it asks for a property. The entries that compute them are in
/// src/train/objectives/.
namespace sftrun::config {

/// What training minimises (`train.objective`).
enum class Objective : uint8_t {
  kSft,
  kDpo,
  kIpo,
  kCpo,
  kSimpo,
  kOrpo,
  kKto,
  kReward,
  kClassify,
  kDistill,
  kGrpo,
  kEmbed
};

/// What an example of the data has: one answer, a chosen and a rejected one, one that is judged
/// (desirable or not), a text of one or several classes, an answer that a model sampled and that has
/// a reward, a prompt that the run itself will answer (`train.rollouts`), or a query with texts that fit
/// it and that do not.
enum class ExampleForm : uint8_t {
  kAnswer,
  kPair,
  kJudged,
  kClassed,
  kSampled,
  kPrompt,
  kRetrieval
};

/// What trains on top of the last layer: the language-model head, a matrix of its own that gives
/// scores of the last token of each document, or nothing: the normed rows of a document, pooled, are
/// its embedding.
enum class HeadKind : uint8_t { kLanguage, kReward, kClasses, kEmbedding };

/// What the loss, its gradient and the metrics are means over, in the whole global batch.
enum class LossTerms : uint8_t { kLabelTokens, kExamples };

/// A metric that stands in lines of the log.
struct ShownMetric {
  std::string_view metric;  ///< one of `ObjectiveInfo::metrics`
  std::string_view word;    ///< in the log
};

/// Of an objective whose loss has a cross-entropy and other parts.
inline constexpr std::string_view kCrossEntropyMetric = "ce_loss";

struct ObjectiveInfo {
  Objective objective;
  std::string_view name;         ///< in configurations and messages, and the tag of a model card
  std::string_view description;  ///< for help texts
  ExampleForm form = ExampleForm::kAnswer;
  LossTerms terms = LossTerms::kLabelTokens;
  /// The loss is the cross-entropy of the labels.
  bool is_cross_entropy = false;
  /// The loss compares the model's probabilities of each label token with a teacher's, which are read
  /// from files or computed by a model beside this one (`train.teacher`).
  bool needs_teacher = false;
  /// Log-probabilities are compared with those of a reference model (reference_model.h), unless
  /// `train.beta` is 0.
  bool needs_reference = false;
  /// The tokens of prompts of chosen answers have labels, too (OddsRatio).
  bool labels_prompts = false;
  /// Before a step, answers of other examples are scored (KTO's estimate of the KL divergence).
  bool needs_mismatched = false;
  /// A head of scores replaces the language-model head; the loss is a function of the scores of
  /// documents (transformers' GenericForSequenceClassification), not of tokens.
  HeadKind head = HeadKind::kLanguage;
  bool has_dropout = false;   ///< of adapters; also noise on embeddings
  bool has_aux_loss = false;  ///< the load-balancing loss of routers may be added
  /// Keys that only some objectives read, and this one does.
  std::span<const std::string_view> settings = {};
  /// It may train on answers that the run writes between its steps (`train.rollouts`).
  bool takes_rollouts = false;
  /// Examples may get an answer that the model writes between the steps, in place of their own
  /// (`train.rollouts.share`). It needs no judgement.
  bool takes_own_answers = false;
  /// Names in metrics.jsonl and TensorBoard, with "eval_" those of evaluations. What a run would be
  /// judged by comes first.
  std::span<const std::string_view> metrics = {};
  ShownMetric shown = {};
  /// What `train.loss_type` may be, the default first; empty: it has one loss of its own.
  std::span<const PreferenceLoss> losses = {};
  double beta = 0.1;                     ///< default of `train.beta`
  double cpo_alpha = 0;                  ///< default of `train.cpo_alpha`
  std::string_view torchtune_loss = {};  ///< the class in torchtune

  constexpr bool reads(std::string_view key) const {
    for (const std::string_view setting : settings)
      if (setting == key) return true;
    return false;
  }
  constexpr bool has_metric(std::string_view name) const {
    for (const std::string_view metric : metrics)
      if (metric == name) return true;
    return false;
  }
  constexpr bool reads_pairs() const { return form == ExampleForm::kPair; }
  constexpr bool reads_answers() const { return form == ExampleForm::kAnswer; }
  constexpr bool reads_judgements() const { return form == ExampleForm::kJudged; }
  /// Its terms are functions of single tokens of sampled answers, and not of sums over documents.
  constexpr bool reads_samples() const { return form == ExampleForm::kSampled; }
  constexpr bool reads_classes() const { return form == ExampleForm::kClassed; }
  constexpr bool takes_loss(PreferenceLoss loss) const {
    for (const PreferenceLoss one : losses)
      if (one == loss) return true;
    return false;
  }
  constexpr bool has_scores() const {
    return head == HeadKind::kReward || head == HeadKind::kClasses;
  }
  /// The loss compares the embeddings of all texts of a global batch, and is known before the passes
  /// that give gradients (train/embeddings.h). The language-model head has no part.
  constexpr bool embeds() const { return head == HeadKind::kEmbedding; }
  /// Gradients depend on sums over documents, or on other rows, and the head runs twice. Else the
  /// gradient of a row is a function of this row: one pass.
  constexpr bool needs_sums() const {
    return !is_cross_entropy && !needs_teacher && head == HeadKind::kLanguage;
  }
  /// The gradient of a micro-batch's rows depends on what its forward pass gives.
  constexpr bool is_of_documents() const { return needs_sums() || has_scores() || embeds(); }
  /// The labels are predicted one by one: each is right or wrong, and their cross-entropy, the loss
  /// or the metric of this name, has a perplexity.
  constexpr bool predicts_labels() const { return !is_of_documents(); }
  constexpr std::string_view cross_entropy_metric() const {
    return needs_teacher ? kCrossEntropyMetric : std::string_view("loss");
  }
  constexpr bool reads_retrieval() const { return form == ExampleForm::kRetrieval; }
  constexpr const char* example_word() const { return reads_pairs() ? "pair" : "example"; }
  constexpr const char* term_word() const {
    return terms == LossTerms::kLabelTokens ? "label token" : example_word();
  }
};

inline constexpr auto kSftSettings =
    std::to_array<std::string_view>({"data.loss_on", "data.label_weights"});

inline constexpr auto kDpoSettings = std::to_array<std::string_view>(
    {"train.beta", "train.loss_type", "train.label_smoothing", "train.ld_alpha",
     "train.f_divergence", "train.f_alpha_divergence_coef", "train.discopop_tau", "train.reference",
     "train.reference_logps"});
inline constexpr auto kIpoSettings = std::to_array<std::string_view>(
    {"train.beta", "train.ld_alpha", "train.f_divergence", "train.f_alpha_divergence_coef",
     "train.reference", "train.reference_logps"});
inline constexpr auto kCpoSettings = std::to_array<std::string_view>(
    {"train.beta", "train.loss_type", "train.label_smoothing", "train.cpo_alpha"});
inline constexpr auto kSimpoSettings = std::to_array<std::string_view>(
    {"train.beta", "train.label_smoothing", "train.simpo_gamma", "train.cpo_alpha"});
inline constexpr auto kOrpoSettings = std::to_array<std::string_view>({"train.beta"});
inline constexpr auto kKtoSettings = std::to_array<std::string_view>(
    {"train.beta", "train.desirable_weight", "train.undesirable_weight", "train.reference",
     "train.reference_logps"});
inline constexpr auto kGrpoSettings =
    std::to_array<std::string_view>({"train.beta",
                                     "train.loss_type",
                                     "train.reference",
                                     "train.epsilon",
                                     "train.epsilon_high",
                                     "train.delta",
                                     "train.importance_sampling_level",
                                     "train.scale_rewards",
                                     "train.mask_truncated_completions",
                                     "train.max_completion_length",
                                     "train.sampling_correction",
                                     "train.sampling_correction_max",
                                     "train.rollouts.reward",
                                     "train.rollouts.n",
                                     "train.rollouts.num_iterations",
                                     "train.rollouts.max_new_tokens",
                                     "train.rollouts.temperature",
                                     "train.rollouts.top_p",
                                     "train.rollouts.top_k",
                                     "train.rollouts.min_p",
                                     "train.rollouts.batch_size",
                                     "train.rollouts.environment",
                                     "train.rollouts.max_turns",
                                     "train.rollouts.environment_timeout",
                                     "train.rollouts.chat",
                                     "train.rollouts.num_samples",
                                     "train.rollouts.engine",
                                     "train.rollouts.engine_model",
                                     "train.rollouts.engine_token_variable",
                                     "train.rollouts.engine_timeout"});

inline constexpr auto kRewardSettings =
    std::to_array<std::string_view>({"train.center_rewards_coefficient"});
inline constexpr auto kClassifySettings =
    std::to_array<std::string_view>({"data.classes", "train.problem_type"});

inline constexpr auto kDistillSettings =
    std::to_array<std::string_view>({"data.loss_on",
                                     "data.label_weights",
                                     "train.teacher",
                                     "train.teacher_topk",
                                     "train.teacher_quant",
                                     "train.kd_alpha",
                                     "train.kd_beta",
                                     "train.kd_temperature",
                                     "train.rollouts.share",
                                     "train.rollouts.max_new_tokens",
                                     "train.rollouts.temperature",
                                     "train.rollouts.top_p",
                                     "train.rollouts.top_k",
                                     "train.rollouts.min_p",
                                     "train.rollouts.batch_size",
                                     "train.rollouts.num_samples",
                                     "train.rollouts.engine",
                                     "train.rollouts.engine_model",
                                     "train.rollouts.engine_token_variable",
                                     "train.rollouts.engine_timeout"});

inline constexpr auto kEmbedSettings = std::to_array<std::string_view>(
    {"train.pooling", "train.embed_temperature", "train.embed_normalize", "train.embed_symmetric",
     "train.negatives", "data.query_prompt", "data.document_prompt"});

/// As in TRL's DPOTrainer, CPOTrainer, ORPOTrainer and KTOTrainer.
inline constexpr auto kPairMetrics =
    std::to_array<std::string_view>({"rewards/accuracies", "rewards/margins", "rewards/chosen",
                                     "rewards/rejected", "logps/chosen", "logps/rejected"});
inline constexpr auto kCpoMetrics = std::to_array<std::string_view>(
    {"rewards/accuracies", "rewards/margins", "rewards/chosen", "rewards/rejected", "logps/chosen",
     "logps/rejected", "nll_loss"});
inline constexpr auto kOrpoMetrics = std::to_array<std::string_view>(
    {"rewards/accuracies", "rewards/margins", "rewards/chosen", "rewards/rejected", "logps/chosen",
     "logps/rejected", "nll_loss", "log_odds_ratio", "log_odds_chosen"});
inline constexpr auto kKtoMetrics =
    std::to_array<std::string_view>({"rewards/margins", "rewards/chosen", "rewards/rejected",
                                     "logps/chosen", "logps/rejected", "kl"});

/// As in TRL's GRPOTrainer.
inline constexpr auto kGrpoMetrics = std::to_array<std::string_view>(
    {"reward", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
     "cispo_clip_ratio", "sampling/importance_sampling_ratio/mean",
     "sampling/sampling_logp_difference/mean", "completions/mean_length",
     "completions/clipped_ratio"});

inline constexpr auto kGrpoLosses = std::to_array<PreferenceLoss>(
    {PreferenceLoss::kDapo, PreferenceLoss::kGrpo, PreferenceLoss::kBnpo, PreferenceLoss::kDrGrpo,
     PreferenceLoss::kCispo});
/// As in TRL's RewardTrainer.
inline constexpr auto kRewardMetrics =
    std::to_array<std::string_view>({"accuracy", "margin", "mean_reward"});
inline constexpr auto kClassifyMetrics =
    std::to_array<std::string_view>({"accuracy", "f1_macro", "f1_micro"});
/// In-batch retrieval: how often the fitting text is the nearest one, and the mean reciprocal rank.
inline constexpr auto kEmbedMetrics = std::to_array<std::string_view>({"accuracy", "mrr"});
inline constexpr auto kDistillMetrics =
    std::to_array<std::string_view>({"kd_loss", kCrossEntropyMetric});

inline constexpr auto kDpoLosses = std::to_array<PreferenceLoss>(
    {PreferenceLoss::kSigmoid, PreferenceLoss::kHinge, PreferenceLoss::kRobust,
     PreferenceLoss::kIpo, PreferenceLoss::kSigmoidNorm, PreferenceLoss::kExoPair,
     PreferenceLoss::kNcaPair, PreferenceLoss::kBcoPair, PreferenceLoss::kSppoHard,
     PreferenceLoss::kApoZero, PreferenceLoss::kApoDown, PreferenceLoss::kDiscopop,
     PreferenceLoss::kSft});
inline constexpr auto kIpoLosses = std::to_array<PreferenceLoss>({PreferenceLoss::kIpo});
inline constexpr auto kCpoLosses = std::to_array<PreferenceLoss>(
    {PreferenceLoss::kSigmoid, PreferenceLoss::kHinge, PreferenceLoss::kIpo});

/// In the order of the enumerators.
inline constexpr auto kObjectives = std::to_array<ObjectiveInfo>({
    {.objective = Objective::kSft,
     .name = "sft",
     .description = "cross-entropy of the labelled tokens",
     .is_cross_entropy = true,
     .has_dropout = true,
     .has_aux_loss = true,
     .settings = kSftSettings},
    {.objective = Objective::kDpo,
     .name = "dpo",
     .description = "direct preference optimization over pairs of a chosen and a rejected answer "
                    "(docs/preference.md)",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .needs_reference = true,
     .settings = kDpoSettings,
     .metrics = kPairMetrics,
     .shown = {.metric = "rewards/accuracies", .word = "accuracy"},
     .losses = kDpoLosses,
     .torchtune_loss = "DPOLoss"},
    {.objective = Objective::kIpo,
     .name = "ipo",
     .description = "dpo with `loss_type: ipo`, which divides by the answers' lengths",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .needs_reference = true,
     .settings = kIpoSettings,
     .metrics = kPairMetrics,
     .shown = {.metric = "rewards/accuracies", .word = "accuracy"},
     .losses = kIpoLosses,
     .torchtune_loss = "IPOLoss"},
    {.objective = Objective::kCpo,
     .name = "cpo",
     .description = "contrastive preference optimization over pairs, without a reference model",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .settings = kCpoSettings,
     .metrics = kCpoMetrics,
     .shown = {.metric = "rewards/accuracies", .word = "accuracy"},
     .losses = kCpoLosses,
     .cpo_alpha = 1},
    {.objective = Objective::kSimpo,
     .name = "simpo",
     .description = "pairs by mean log-probabilities with a margin, without a reference model",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .settings = kSimpoSettings,
     .metrics = kCpoMetrics,
     .shown = {.metric = "rewards/accuracies", .word = "accuracy"},
     .torchtune_loss = "SimPOLoss"},
    {.objective = Objective::kOrpo,
     .name = "orpo",
     .description = "cross-entropy of chosen prompts and answers plus the odds ratio of pairs, "
                    "without a reference model",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .labels_prompts = true,
     .settings = kOrpoSettings,
     .metrics = kOrpoMetrics,
     .shown = {.metric = "rewards/accuracies", .word = "accuracy"}},
    {.objective = Objective::kKto,
     .name = "kto",
     .description = "Kahneman-Tversky optimization over answers that are judged desirable or not "
                    "(docs/preference.md)",
     .form = ExampleForm::kJudged,
     .terms = LossTerms::kExamples,
     .needs_reference = true,
     .needs_mismatched = true,
     .settings = kKtoSettings,
     .metrics = kKtoMetrics,
     .shown = {.metric = "rewards/margins", .word = "margin"}},
    {.objective = Objective::kReward,
     .name = "reward",
     .description = "a reward model: a head of one score, from pairs of a chosen and a rejected "
                    "answer (docs/heads.md)",
     .form = ExampleForm::kPair,
     .terms = LossTerms::kExamples,
     .head = HeadKind::kReward,
     .settings = kRewardSettings,
     .metrics = kRewardMetrics,
     .shown = {.metric = "accuracy", .word = "accuracy"}},
    {.objective = Objective::kClassify,
     .name = "classify",
     .description = "a classifier: a head of one score for each class, from texts with a label or "
                    "several (docs/heads.md)",
     .form = ExampleForm::kClassed,
     .terms = LossTerms::kExamples,
     .head = HeadKind::kClasses,
     .has_dropout = true,
     .settings = kClassifySettings,
     .metrics = kClassifyMetrics,
     .shown = {.metric = "accuracy", .word = "accuracy"}},
    {.objective = Objective::kDistill,
     .name = "distill",
     .description = "divergence from a teacher's probabilities of the labelled tokens, and their "
                    "cross-entropy (docs/distillation.md)",
     .needs_teacher = true,
     .has_dropout = true,
     .has_aux_loss = true,
     .settings = kDistillSettings,
     .takes_own_answers = true,
     .metrics = kDistillMetrics,
     .shown = {.metric = "kd_loss", .word = "divergence"}},
    {.objective = Objective::kGrpo,
     .name = "grpo",
     .description = "group relative policy optimization over sampled answers and their rewards "
                    "(docs/grpo.md)",
     .form = ExampleForm::kSampled,
     .terms = LossTerms::kExamples,
     .needs_reference = true,
     .settings = kGrpoSettings,
     .takes_rollouts = true,
     .metrics = kGrpoMetrics,
     .shown = {.metric = "reward", .word = "reward"},
     .losses = kGrpoLosses,
     .beta = 0},
    {.objective = Objective::kEmbed,
     .name = "embed",
     .description = "an embedding model: each query is nearest to its own text among those of the "
                    "whole global batch (docs/embeddings.md)",
     .form = ExampleForm::kRetrieval,
     .terms = LossTerms::kExamples,
     .head = HeadKind::kEmbedding,
     .settings = kEmbedSettings,
     .metrics = kEmbedMetrics,
     .shown = {.metric = "accuracy", .word = "accuracy"}},
});
/// Names that other tools have, and this version has not.
inline constexpr std::array<std::string_view, 0> kOtherObjectives = {};

constexpr const ObjectiveInfo& objective_info(Objective objective) {
  return kObjectives[static_cast<size_t>(objective)];
}
static_assert(are_in_order(kObjectives, &ObjectiveInfo::objective));

/// The objective with this name; null: there is none.
const ObjectiveInfo* find_objective(std::string_view name);
/// The one that is this class of torchtune; null: there is none.
const ObjectiveInfo* find_objective_of_torchtune(std::string_view loss);

/// The names of the objectives for which `holds` is true, in the order of the table.
/// @param holds a property of a row, such as &ObjectiveInfo::reads_pairs
template <class Property>
std::vector<std::string> objective_names(Property holds) {
  std::vector<std::string> names;
  for (const ObjectiveInfo& info : kObjectives)
    if (std::invoke(holds, info)) names.emplace_back(info.name);
  return names;
}
/// "sft and dpo"   @param last between the last two: " and "
std::string all_objectives(std::string_view last);
/// "sft", or of several "dpo, ipo or hinge": those that read such examples.
std::string objectives_for(ExampleForm form);
/// The first of them, to be written into a configuration.
std::string first_objective_for(ExampleForm form);
/// A text in which `{objectives}` becomes "sft and dpo", and `{objective}` "sft or dpo".
std::string name_objectives(std::string text);
/// "sft: …. dpo: …."
std::string objective_descriptions();
/// Those that read the setting: "dpo, hinge".   @param key "train.beta"
std::string readers_of_setting(std::string_view key);
/// The keys of all rows' settings, each once.
std::vector<std::string_view> objective_settings();

}  // namespace sftrun::config
