#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/axes.h"
#include "sftrun/config/objectives.h"
#include "sftrun/config/optimizers.h"
#include "sftrun/config/places.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/config/rollouts.h"
#include "sftrun/config/strategies.h"
#include "sftrun/config/train_parts.h"
#include "sftrun/core/feature_projector.h"
#include "sftrun/core/quant_format.h"

/// The typed configuration of a run. Names are those of the YAML, and defaults are only here.
/// src/config/fields.h lists each field once (name, range, help); all other code visits that list.
namespace sftrun::config {

/// "auto" or a number. Resolved before anything is loaded.
struct AutoInt {
  std::optional<int64_t> value;
  bool is_auto() const { return !value; }
  bool operator==(const AutoInt&) const = default;
};

enum class DTypeChoice { kAuto, kFp32, kBf16, kFp16 };
std::string_view dtype_name(DTypeChoice dtype);  ///< as in a configuration: "auto", "bf16"
enum class TuningMode { kLora, kQlora, kFull, kPartial };
enum class TuningBackend { kFused, kBnb };  ///< `unsloth` is an alias of fused
enum class LoraInit { kDefault, kPissa };
/// `tuning.quant`. Every format with `is_made` is a choice, too: see `quant_of`.
enum class Quant : uint8_t { kAuto = 64, kNone, kGguf, kMxfp4, kStored };
constexpr Quant quant_of(QuantFormat format) {
  return static_cast<Quant>(format);
}
enum class LossOnChoice {
  kAssistant,
  kLastAssistant,
  kCompletion,
  kAll
};  ///< `responses` is an alias of assistant
enum class Thinking { kTemplate, kKeep, kSplit };
enum class EmptyThinking { kWarn, kDrop, kKeep };
enum class TooLong { kAuto, kDrop, kTruncate, kError };  ///< auto: drop for chat, truncate for text
enum class BadRecords { kError, kSkip };
enum class Scheduler {
  kConstant,
  kConstantWithWarmup,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kInverseSqrt
};
/// Learning rate of the first of n warm-up steps: 0, as in transformers, or 1/n of the peak.
/// auto: 0 if the warm-up is set, else 1/n.
enum class WarmupFrom { kAuto, kZero, kFirstStep };
/// What the learning rate of a matrix is multiplied by (torch.optim.Muon's adjust_lr_fn):
/// 0.2 * sqrt(max(rows, columns)), or sqrt(max(1, rows / columns)).
enum class MuonLearningRate { kMatchRmsAdamW, kOriginal };
/// The reference model of preference training: the model as it starts, the base with adapters
/// switched off, or another model or adapter.
enum class ReferenceModel { kStart, kBase, kPath };
enum class ReferenceLogps { kOnline, kPrecomputed };
enum class ImportanceLevel { kToken, kSequence };  ///< what has a ratio
enum class ScaleRewards {
  kGroup,
  kBatch,
  kNone
};  ///< what advantages are divided by the spread of
enum class SamplingCorrection {
  kOff,
  kTokenTruncate,
  kTokenMask,
  kSequenceTruncate,
  kSequenceMask
};
/// Whether a text has one class or several (`train.problem_type`); kAuto: as the records say.
enum class ProblemType { kAuto, kSingleLabel, kMultiLabel };
/// Which rows of a text are its embedding (`train.pooling`): that of the last token, or the mean of all.
enum class Pooling : uint8_t { kLast, kMean };
enum class EvalStrategy {
  kAuto,
  kNo,
  kSteps,
  kEpoch
};  ///< auto: steps if eval_steps is set, epoch if there is validation data
enum class SaveStrategy { kSteps, kEpoch };  ///< steps: every save_steps, if they are set
/// What is computed again in the backward pass instead of being kept.
enum class Checkpointing { kNone, kLayer, kAttention, kMlp };
enum class CommHook { kNone, kBf16 };  ///< how gradients are sent
enum class Offload { kNone, kCpu };
enum class Fetch { kAuto, kPerMicroBatch, kPerStep };  ///< of weights that a device does not keep
enum class CommBackend { kAuto, kNccl, kGloo };
enum class AttentionChoice { kAuto, kFlash, kCudnn, kMeasure };
enum class CudaGraphs { kAuto, kOn, kOff };
enum class SaveInBackground { kAuto, kOn, kOff };
enum class LongestBatchFirst { kAuto, kOn, kOff };
enum class CheckpointFormat { kAuto, kWhole };  ///< auto: in parts where ranks own parts

/// `model.projectors`, in the order of the configuration.
using Projectors = std::vector<FeatureProjector>;

struct ModelConfig {
  std::string name;
  std::string revision;  ///< of a model on the hub; empty: main
  int64_t max_seq_len = 2048;
  DTypeChoice dtype = DTypeChoice::kAuto;
  AttentionChoice attention = AttentionChoice::kAuto;
  std::string chat_template;  ///< a file, or the template itself; empty: the model's own
  Projectors projectors;      ///< of features that other encoders computed
};

/// `tuning.lora.target_modules`, as PEFT takes it.
struct TargetModules {
  std::vector<std::string> names = {"all-linear"};  ///< endings of names
  /// A regular expression that matches whole names of modules; replaces `names`, which are then empty.
  std::string expression;
  bool empty() const { return names.empty() && expression.empty(); }
  bool operator==(const TargetModules&) const = default;
};

struct LoraConfig {
  int64_t r = 16;
  double alpha = 32;
  double dropout = 0;
  TargetModules target_modules;
  std::vector<std::string> target_parameters;
  bool rslora = false;
  /// Rank and alpha of modules whose names match regular expressions.
  nlohmann::ordered_json rank_pattern = nlohmann::ordered_json::object(),
                         alpha_pattern = nlohmann::ordered_json::object();
  bool dora = false;
  std::vector<std::string> modules_to_save;  ///< endings of names: fully trained
  LoraInit init = LoraInit::kDefault;
  std::string init_from;  ///< a PEFT adapter to start from; its directory after it was found
};

struct TuningConfig {
  TuningMode mode = TuningMode::kLora;
  TuningBackend backend = TuningBackend::kFused;
  Quant quant = Quant::kAuto;
  bool double_quant = true;       ///< for nf4 and fp4: also quantise the block scales
  int64_t quant_block_size = 64;  ///< values that share a scale
  /// Whether embedding and head are stored as `quant` says; nullopt: as in the checkpoint.
  std::optional<bool> quant_embeddings;
  std::vector<std::string> skip_modules;  ///< names, or parts, of modules to leave dense
  LoraConfig lora;
  std::vector<std::string> trainable;  ///< regular expressions over parameter names, for partial
  TrainParts train_parts;              ///< of a model with images; resolved: see `resolve`

  bool trains_adapter() const { return mode == TuningMode::kLora || mode == TuningMode::kQlora; }
  /// The parts that train in full beside LoRA.
  TrainedParts full_parts() const;
  /// The format that linear layers are quantised to when they are loaded; nullopt: they are not
  /// quantised. A choice with the name of a format (sftrun/core/quant_format.h) is that format.
  std::optional<QuantOptions> quant_options() const;
  std::string quant_name() const;  ///< of that format: "nf4"; empty: none
  /// Whether the base keeps the format of its files.
  bool keeps_blocks() const {
    return quant == Quant::kGguf || quant == Quant::kMxfp4 || quant == Quant::kStored;
  }
  bool quantises_base() const { return quant_options().has_value(); }
};

/// One data set of a run; all its files have one format.
struct DataSource {
  std::string path;   ///< a file, a glob, a folder, or a data set on the hub
  std::string name;   ///< of a subset (`configs` of a README.md); empty: the default one
  std::string split;  ///< of folders and hub data sets; empty: train, or validation for data.val
  double weight = 1;  ///< how often an epoch uses each record; 0.5: a random half
  RecordFormat format = RecordFormat::kAuto;
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();  ///< over data.fields
  std::string image_root;              ///< over data.image_root; empty: that one
  std::optional<int64_t> max_samples;  ///< use only the first records
  bool operator==(const DataSource&) const = default;
};

/// "a.jsonl", or "a.jsonl, b.csv and 3 more".
std::string names_of(const std::vector<DataSource>& sources);

/// Of labels in the loss.
inline constexpr double kMaxLabelWeight = 1000;

struct DataConfig {
  std::vector<DataSource> train, val;
  double val_split = 0;
  RecordFormat format = RecordFormat::kAuto;
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();  ///< key -> column
  bool shuffle = true, packing = true, group_by_length = false;
  AutoInt bin_tokens;  ///< tokens per bin when packing; resolved when the data are known
  bool streaming = false;
  int64_t shuffle_buffer = 16384;
  std::string cache_dir;
  int64_t seed = 42;
  LossOnChoice loss_on = LossOnChoice::kAssistant;
  /// Regular expressions over answers, with the weight of the labels that they match
  nlohmann::ordered_json label_weights = nlohmann::ordered_json::object();
  Thinking thinking = Thinking::kTemplate;
  EmptyThinking empty_thinking = EmptyThinking::kWarn;
  nlohmann::ordered_json chat_template_kwargs = nlohmann::ordered_json::object();
  TooLong too_long = TooLong::kAuto;
  BadRecords bad_records = BadRecords::kError;
  /// Names of the classes of `classify`, in the order of their scores; empty: those of the model or of the data, which resolving a run
  /// finds.
  std::vector<std::string> classes;
  std::string query_prompt, document_prompt;  ///< of `embed`: before each text
  /// Folder of relative paths of images, videos and features; empty: that of their record's file.
  std::string image_root;
  int64_t max_image_pixels = 0, image_longest_edge = 0;  ///< 0: the model's own limits
};

/// Defaults that depend on other fields.
inline constexpr double kLoraLearningRate = 2e-4, kFullLearningRate = 2e-5, kWarmupRatio = 0.03;
inline constexpr double kCispoHighest = 5;     ///< train.epsilon_high of cispo, as its authors use
inline constexpr double kExoSmoothing = 1e-3;  ///< arXiv:2402.00856; 0 has no finite loss

struct TrainConfig {
  Objective objective = Objective::kSft;
  std::optional<double> beta;  ///< unset: `ObjectiveInfo::beta`
  LossMixture loss_type;       ///< empty: the objective's default
  /// Share of preferences that are taken to be wrong; unset: 0, of exo_pair kExoSmoothing.
  std::optional<double> label_smoothing;
  std::optional<double> ld_alpha;  ///< LD-DPO: weight of tokens beyond the shorter answer's length
  FDivergence f_divergence = FDivergence::kReverseKl;
  double f_alpha_divergence_coef = 0.5, discopop_tau = 0.05, simpo_gamma = 0.5;
  std::optional<double> cpo_alpha;  ///< unset: `ObjectiveInfo::cpo_alpha`
  double desirable_weight = 1, undesirable_weight = 1;
  double epsilon = 0.2;                ///< ratios are clipped to [1 - epsilon, 1 + epsilon_high]
  std::optional<double> epsilon_high;  ///< unset: epsilon, of cispo kCispoHighest
  std::optional<double> delta;         ///< bound of ratios that are not clipped
  ImportanceLevel importance_sampling_level = ImportanceLevel::kToken;
  ScaleRewards scale_rewards = ScaleRewards::kGroup;
  bool mask_truncated_completions = false;
  int64_t max_completion_length = 256;  ///< what dr_grpo divides sums over tokens by
  SamplingCorrection sampling_correction = SamplingCorrection::kSequenceMask;
  double sampling_correction_max = 3;
  double center_rewards_coefficient = 0;          ///< of `reward`; 0: off
  ProblemType problem_type = ProblemType::kAuto;  ///< of `classify`; resolved: not kAuto
  std::string reference = "start";  ///< "start", "base", or the path of a model or an adapter
  ReferenceLogps reference_logps = ReferenceLogps::kOnline;
  RolloutsConfig rollouts;
  /// Folder of its scores (data/teacher_scores.h), or a model or adapter (`teacher_kind`); empty: none
  std::string teacher;
  int64_t teacher_topk = 64;           ///< of a model: tokens whose log-probabilities are compared
  Quant teacher_quant = Quant::kAuto;  ///< of a model: auto is the format of its files
  double kd_alpha = 0.5, kd_beta = 0, kd_temperature = 1;  ///< layers::Distillation
  Pooling pooling = Pooling::kLast;                        ///< of `embed`, as what follows
  double embed_temperature = 0.05;                         ///< divides the similarities
  bool embed_normalize = true;   ///< embeddings have length 1: cosine similarity
  bool embed_symmetric = false;  ///< the loss of finding the query of a text is added
  /// Texts of an example that do not fit; unset: as many as records have, which resolving a run finds.
  std::optional<int64_t> negatives;
  double epochs = 3;
  std::optional<int64_t> max_steps;
  AutoInt batch_size, grad_accum, global_batch_size;
  std::optional<double> learning_rate;  ///< resolved: kLoraLearningRate or kFullLearningRate
  PartRates part_learning_rates;        ///< unset: learning_rate
  Scheduler scheduler = Scheduler::kCosine;
  std::optional<double> warmup_ratio;  ///< resolved: kWarmupRatio without warmup_steps
  std::optional<int64_t> warmup_steps;
  WarmupFrom warmup_from = WarmupFrom::kAuto;
  Optimizer optimizer = Optimizer::kAdamW;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double weight_decay = 0, max_grad_norm = 1;
  /// Resolved: the optimizer's default, if it reads the setting.
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  MuonLearningRate muon_lr = MuonLearningRate::kMatchRmsAdamW;
  std::optional<double> loraplus_lr_ratio;     ///< learning rate of LoRA's B / learning_rate
  std::optional<double> neftune_noise_alpha;   ///< noise on embeddings during training
  std::optional<double> router_aux_loss_coef;  ///< resolved: from the model's config.json
  std::optional<bool> bf16, fp16;
  Checkpointing gradient_checkpointing = Checkpointing::kNone;
  int64_t seed = 42;
  EvalStrategy eval_strategy = EvalStrategy::kAuto;
  std::optional<int64_t> eval_steps;
  bool eval_on_start = false;
  AutoInt eval_batch_size;
  bool eval_token_accuracy = false;
  bool predict_with_generate = false;  ///< validation prompts are answered, and the answers scored
  int64_t generation_max_new_tokens = 256, generation_num_beams = 1, generation_batch_size = 8;
  std::optional<int64_t> generation_max_samples;
  double generation_time_budget = 0.25;  ///< share of the training time
  bool load_best_model_at_end = false;
  std::string metric_for_best_model;      ///< empty: eval_loss
  std::optional<bool> greater_is_better;  ///< unset: as the metric's name says
  std::optional<int64_t> early_stopping_patience;
  double early_stopping_threshold = 0;
  SaveStrategy save_strategy = SaveStrategy::kSteps;
  std::optional<int64_t> save_steps;
  std::string save_every =
      "10m";  ///< wall-clock time between checkpoints; "0": only by save_strategy and at the end
  std::optional<int64_t> save_total_limit;
  SaveInBackground save_in_background = SaveInBackground::kAuto;
  LongestBatchFirst longest_batch_first = LongestBatchFirst::kAuto;
  CheckpointFormat checkpoint_format = CheckpointFormat::kAuto;
  int64_t logging_steps = 1;
  bool ddp_find_unused_parameters = false, ddp_broadcast_buffers = false;
  int64_t ddp_bucket_cap_mb = 25;
  CommHook ddp_comm_hook = CommHook::kNone;
  int64_t dataloader_num_workers = 0;
  bool dataloader_pin_memory = true;
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  bool deterministic = false;  ///< on a GPU: sums in a fixed order

  const ObjectiveInfo& objective_info() const { return config::objective_info(objective); }
  /// What examples of the data have: prompts alone, where the run writes the answers itself.
  ExampleForm example_form() const {
    return has_rollouts() ? ExampleForm::kPrompt : objective_info().form;
  }
  /// Whether the run writes all answers that it trains on, to prompts, and judges them.
  bool has_rollouts() const { return objective_info().takes_rollouts && rollouts.are_judged(); }
  /// Whether it writes answers of its own in place of those of some examples.
  bool has_own_answers() const {
    return objective_info().takes_own_answers && rollouts.share.has_value();
  }
  /// Whether records are kept beside their tokens, to be written beside such answers.
  bool keeps_asked_records() const { return has_own_answers() && rollouts.num_samples > 0; }
  /// Whether it writes answers between steps.
  bool writes_answers() const { return has_rollouts() || has_own_answers(); }
  /// Whether the model that trains also writes text, in steps or in evaluations.
  bool generates() const {
    return predict_with_generate || (writes_answers() && !rollouts.is_by_server());
  }
  /// Examples that one example of the data becomes: the answers to a prompt.
  int64_t examples_of_record() const { return has_rollouts() ? rollouts.n : 1; }
  /// What a run is judged by in logs and reports. Rewards of answers that were sampled before do not tell what the model does.
  ShownMetric shown_metric() const {
    const ObjectiveInfo& info = objective_info();
    return info.takes_rollouts && !has_rollouts() ? ShownMetric{} : info.shown;
  }
  /// Consecutive optimizer steps on the same examples.
  int64_t steps_of_batch() const { return has_rollouts() ? rollouts.num_iterations : 1; }
  /// `loss_type` or the objective's default; empty: it has one loss of its own.
  LossMixture losses() const;
  double resolved_smoothing(PreferenceLoss loss) const {
    return label_smoothing.value_or(loss == PreferenceLoss::kExoPair ? kExoSmoothing : 0);
  }
  double resolved_beta() const { return beta.value_or(objective_info().beta); }
  /// Whether passes of the reference model are needed.
  bool needs_reference() const { return objective_info().needs_reference && resolved_beta() > 0; }
  /// Token sequences of an example. They lie in the same micro-batch, one after the other.
  int64_t sequences() const {
    const ObjectiveInfo& info = objective_info();
    return info.embeds() ? 2 + negatives.value_or(0) : info.reads_pairs() ? 2 : 1;
  }
  double resolved_cpo_alpha() const { return cpo_alpha.value_or(objective_info().cpo_alpha); }
  ReferenceModel reference_model() const;
  double resolved_momentum() const { return momentum.value_or(optimizer_info(optimizer).momentum); }
  bool resolved_nesterov() const { return nesterov.value_or(optimizer_info(optimizer).nesterov); }
};

/// What is kept in the host's memory while it is not used on the GPU.
struct OffloadConfig {
  Offload optimizer = Offload::kNone;    ///< optimizer state; resolved: a paged optimizer
  Offload activations = Offload::kNone;  ///< inputs of layers, which gradient checkpointing keeps
  Offload base = Offload::kNone;         ///< frozen weights
  /// Trained weights, with their gradients and optimizer state; the CPU updates them.
  Offload params = Offload::kNone;
};

/// Which part of a model is on which device of the machine.
struct DeviceMap {
  std::string rule;  ///< "auto", "balanced", "sequential"; empty: `places`
  /// Module -> device, as in files of transformers: {"model.layers.0": 0, "lm_head": "cuda:1"}
  nlohmann::ordered_json places = nlohmann::ordered_json::object();
};

struct ParallelConfig {
  Strategy strategy = Strategy::kAuto;
  std::optional<DeviceMap> device_map;  ///< resolved: with `places`
  /// Ranks along an axis; unset: what the strategy and the other sizes leave (`axes_of`).
  std::optional<int64_t> dp_replicate;  ///< copies of the model
  std::optional<int64_t> dp_shard;      ///< ranks that share one copy
  std::optional<int64_t> pp;            ///< stages; device_map: devices
  std::optional<int64_t> cp;            ///< ranks that share each sequence
  std::optional<int64_t> tp;            ///< parts of each matrix
  Axes axes;                            ///< resolved: what the strategy and the sizes mean
  OffloadConfig offload;
  Fetch fetch = Fetch::kAuto;
  CommBackend backend = CommBackend::kAuto;
  std::string timeout = "30m";      ///< for the rendezvous and for collectives
  std::string stall_after = "30s";  ///< without progress, then the log names the ranks at fault
  /// Files of Accelerate and DeepSpeed (the module `foreign`). Empty after loading: what they say is in
  /// the other fields then.
  std::string accelerate, deepspeed;
};

/// How experiment trackers name a run; empty: see config/trackers.h.
struct TrackingConfig {
  std::string project, name;
  std::string uri;  ///< of an MLflow server
};

struct OutputConfig {
  std::string dir;  ///< resolved: runs/<name of the yaml>
  /// Names of config/trackers.h; metrics.jsonl is written without its name, too.
  std::vector<std::string> report_to = {"tensorboard", "jsonl"};
  bool tensorboard = true;  ///< once loaded: whether `report_to` has it
  TrackingConfig tracking;
};

/// A command that rank 0 starts at events of the run.
struct CallbacksConfig {
  std::string command;  ///< for `sh -c`; empty: none
  std::vector<std::string> events = {"checkpoint", "evaluation", "end", "failure"};
  std::string timeout = "1m";
};

struct RunConfig {
  ModelConfig model;
  TuningConfig tuning;
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  OutputConfig output;
  CallbacksConfig callbacks;
};

/// Where a value came from, for errors and for the list of overrides in force.
struct Override {
  std::string key, value, source;  ///< source: "command line", "SFTRUN_TRAIN__BATCH_SIZE",
                                   ///< "/home/u/.config/sftrun/machine.yaml:3"
};

/// Launch settings of the machine file, or of a file of Accelerate. Each is used if its flag is not
/// given.
struct MachineSettings {
  std::filesystem::path file;          ///< empty: there is none
  std::optional<std::string> devices;  ///< "2", "0,2,3", "cpu" or "auto"
  std::optional<int64_t> processes;    ///< on this machine; Accelerate's files only
  std::optional<int64_t> nodes, node_rank;
  std::optional<std::string> master;  ///< "host" or "host:port"
};

struct LoadedConfig {
  RunConfig config;
  std::vector<Override> overrides;    ///< from all sources except the run's YAML; one entry per key
  std::vector<std::string> warnings;  ///< one line each: keys and values without an effect
  Places places;                      ///< of the keys that are set
  MachineSettings machine;
  MachineSettings accelerate;  ///< of the file that parallel.accelerate names
  std::vector<std::string>
      notes;  ///< one line each: what files of other tools say without a use here

  /// Where `key` ("data.train") was set; empty if it has its default.
  std::string place_of(const std::string& key) const;
};

/// Reads only the machine file: SFTRUN_MACHINE_CONFIG, or sftrun/machine.yaml in XDG_CONFIG_HOME or
/// ~/.config. It need not exist.
MachineSettings load_machine_settings();
/// @throws DataError naming the key's place if data.train, data.val or tuning.lora.init_from do not
/// exist. The model is not checked, because it may be on a hub.
void require_files(const LoadedConfig& loaded);

/// Micro-batch and accumulation for `target` bins (or examples) a step.
struct BatchShape {
  int64_t micro_batch_size = 1, grad_accum_steps = 1;
  bool operator==(const BatchShape&) const = default;
};
/// Bins per step if batch_size, grad_accum and global_batch_size are all auto.
inline constexpr int64_t kTargetGlobalBatch = 32;
/// Minimum accumulation steps of the automatic choice, if the target allows it.
inline constexpr int64_t kMinAutoGradAccum = 4;
/// Largest micro-batch of the automatic choice.
inline constexpr int64_t kMaxAutoMicroBatch = 8;
/// The largest micro-batch up to `max_micro_batch` that divides `target` over the ranks with at
/// least kMinAutoGradAccum accumulation steps; with fewer bins per rank than that, the largest that
/// divides them. A target that world_size does not divide is lowered to the next multiple (at least
/// one bin per rank). Pure.
BatchShape resolve_batch(int64_t world_size, int64_t max_micro_batch,
                         int64_t target = kTargetGlobalBatch);

/// Sets the number of bins per step to `target` instead of kTargetGlobalBatch.
/// @param batch_size as configured   @param max_micro_batch the largest automatic micro-batch
/// @param eval_follows whether eval_batch_size is automatic; one that is resolved follows
void set_target_batch(TrainConfig& train, int64_t target, AutoInt batch_size, int64_t world_size,
                      int64_t max_micro_batch, bool eval_follows = false);

/// The strategy on `world_size` processes: kSingle on one process, whatever `wanted` is, and kDdp
/// on several.   @throws ConfigError for kSingle on several processes
Strategy resolved_strategy(Strategy wanted, int world_size, const std::string& place = {});
/// "2 or 4", for advice: the divisors above 1 that are nearest to a number that does not divide.
std::string near_divisors(int64_t number, int64_t asked);
/// The preset that has these axes; of several, that of shards, then of stages.
/// @post resolving again with the result, beside the sizes, gives the same axes
Strategy strategy_of(const Axes& axes);
/// Sets `axes` and the sizes of the axes that the run has, and the strategy if it is auto. Idempotent.
/// @param local_world_size processes of a machine, the default of hybrid's shards
/// @throws ConfigError as `axes_of` and `resolved_strategy` do
void resolve_axes(ParallelConfig& parallel, int world_size, int local_world_size,
                  const Places& places = {});
/// The largest automatic micro-batch, where `max` fits the device: a pipeline needs several
/// micro-batches for each of its stages.   @param target bins per step
int64_t max_auto_micro_batch(const Axes& axes, int64_t max, int64_t target = kTargetGlobalBatch);
std::string_view strategy_name(Strategy strategy);  ///< "single", "ddp"

/// Fills in every value that follows from others (dtype from bf16/fp16, learning rate, warm-up,
/// evaluation, output.dir, batch sizes; too_long stays auto until the data's format is known and
/// dtype until the device is). Pure and idempotent.
/// @param world_size processes of the run   @param max_micro_batch the largest automatic
/// micro-batch (what fits the device)
/// @throws ConfigError if the batch sizes do not divide
void resolve(RunConfig& config, const std::filesystem::path& yaml, int world_size,
             int64_t max_micro_batch = kMaxAutoMicroBatch);
/// The same; errors name the places of the values.
void resolve(LoadedConfig& loaded, const std::filesystem::path& yaml, int world_size,
             int64_t max_micro_batch = kMaxAutoMicroBatch);

nlohmann::ordered_json to_json(const RunConfig& config);  ///< every field
/// Where `to_json` has a key ("tuning.lora.r").
nlohmann::ordered_json::json_pointer pointer_to(std::string key);
/// The fields that a resumed run must not change, by key ("tuning.lora.r"); the keys of a field that
/// is a map follow its own. The content of files and the backend are compared separately.
nlohmann::ordered_json identity_settings(const RunConfig& config);
/// The fields among `identity_settings` that say how long a run is.
std::vector<std::string> length_keys();
RunConfig from_json(
    const nlohmann::ordered_json& json);  ///< inverse of to_json; @throws ConfigError
std::string to_yaml(
    const RunConfig& config);  ///< config.resolved.yaml; loads again to the same values
/// The setting whose last part is `name`, or that has this name in another trainer, or the first of
/// the section of this name; "": none.
std::string setting_named(const std::string& name);
/// The fix for a key of another trainer ("report_to"); "": unknown key.
std::string advice_on_key(const std::string& name);
std::string reference_markdown();  ///< docs/configuration.md
std::string json_schema();         ///< for editors; draft 2020-12

}  // namespace sftrun::config
