#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>
#include <string_view>

#include "sftrun/config/run_config.h"
#include "sftrun/core/quant_format.h"

/// The words of every enumeration.
namespace sftrun::config {

enum class WordKind {
  kMain,         ///< shown in help and written to config.resolved.yaml
  kAlias,        ///< accepted
  kUnsupported,  ///< known, but not supported in this version: an error that says so
};

template <class E>
struct Word {
  std::string_view text;
  E value;
  WordKind kind = WordKind::kMain;
};

template <class E>
struct Words;  // one specialisation per enumeration: `all`, and `instead`, the fix for words that
               // are known but not supported; empty: "use A or B", all that are supported

template <>
struct Words<DTypeChoice> {
  using enum DTypeChoice;
  static constexpr auto all = std::to_array<Word<DTypeChoice>>({
      {"auto", kAuto},
      {"fp32", kFp32},
      {"bf16", kBf16},
      {"fp16", kFp16},
      {"float32", kFp32, WordKind::kAlias},
      {"f32", kFp32, WordKind::kAlias},
      {"bfloat16", kBf16, WordKind::kAlias},
      {"float16", kFp16, WordKind::kAlias},
      {"f16", kFp16, WordKind::kAlias},
      {"half", kFp16, WordKind::kAlias},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<TuningMode> {
  using enum TuningMode;
  static constexpr auto all = std::to_array<Word<TuningMode>>({
      {"lora", kLora},
      {"full", kFull},
      {"partial", kPartial},
      {"qlora", kQlora},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<TuningBackend> {
  using enum TuningBackend;
  static constexpr auto all = std::to_array<Word<TuningBackend>>({
      {"fused", kFused},
      {"bnb", kBnb},
      {"unsloth", kFused, WordKind::kAlias},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<LoraInit> {
  using enum LoraInit;
  static constexpr auto all = std::to_array<Word<LoraInit>>({
      {"default", kDefault},
      {"pissa", kPissa},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Quant> {
  using enum Quant;
  static constexpr size_t kFormats = static_cast<size_t>(std::count_if(
      kQuantFormats.begin(), kQuantFormats.end(), std::mem_fn(&QuantFormatInfo::is_made)));
  static constexpr auto all = [] {
    constexpr auto kBefore = std::to_array<Word<Quant>>({{"auto", kAuto}, {"none", kNone}});
    constexpr auto kAfter = std::to_array<Word<Quant>>({
        {"gguf", kGguf},
        {"mxfp4", kMxfp4},
        {"stored", kStored},
        {"int4", kNone, WordKind::kUnsupported},
        {"gptq", kNone, WordKind::kUnsupported},
        {"awq", kNone, WordKind::kUnsupported},
        {"4bit", quant_of(QuantFormat::kNf4), WordKind::kAlias},
        {"8bit", quant_of(QuantFormat::kInt8), WordKind::kAlias},
        {"fp16", kNone, WordKind::kAlias},
        {"bf16", kNone, WordKind::kAlias},
        {"fp32", kNone, WordKind::kAlias},
        {"q4_k_m", kNone, WordKind::kUnsupported},
        {"q8_0", kNone, WordKind::kUnsupported},
    });
    std::array<Word<Quant>, kBefore.size() + kFormats + kAfter.size()> words{};
    auto* end = std::copy(kBefore.begin(), kBefore.end(), words.begin());
    for (const QuantFormatInfo& info : kQuantFormats)
      if (info.is_made) *end++ = {info.name, quant_of(info.format)};
    std::copy(kAfter.begin(), kAfter.end(), end);
    return words;
  }();
  static constexpr std::string_view instead =
      "use nf4 or fp4 for 4 bits, int8 or fp8 for 8; for other formats name a model that is stored "
      "in them (GPTQ, AWQ, GGUF), which keeps them with auto";
};

template <>
struct Words<RecordFormat> {
  static constexpr auto all = [] {
    constexpr size_t kAliases = [] {
      size_t count = 0;
      for (const RecordFormatInfo& info : kRecordFormats) count += info.aliases.size();
      return count;
    }();
    std::array<Word<RecordFormat>, 1 + kRecordFormats.size() + kAliases> words{};
    auto* end = words.begin();
    *end++ = {"auto", RecordFormat::kAuto};
    for (const RecordFormatInfo& info : kRecordFormats) {
      *end++ = {info.name, info.format};
      for (const std::string_view alias : info.aliases)
        *end++ = {alias, info.format, WordKind::kAlias};
    }
    return words;
  }();
  static constexpr std::string_view instead{};
};

template <>
struct Words<LossOnChoice> {
  using enum LossOnChoice;
  static constexpr auto all = std::to_array<Word<LossOnChoice>>({
      {"assistant", kAssistant},
      {"last_assistant", kLastAssistant},
      {"completion", kCompletion},
      {"all", kAll},
      {"responses", kAssistant, WordKind::kAlias},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Thinking> {
  using enum Thinking;
  static constexpr auto all = std::to_array<Word<Thinking>>({
      {"template", kTemplate},
      {"keep", kKeep},
      {"split", kSplit},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<EmptyThinking> {
  using enum EmptyThinking;
  static constexpr auto all = std::to_array<Word<EmptyThinking>>({
      {"warn", kWarn},
      {"drop", kDrop},
      {"keep", kKeep},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<TooLong> {
  using enum TooLong;
  static constexpr auto all = std::to_array<Word<TooLong>>({
      {"auto", kAuto},
      {"drop", kDrop},
      {"truncate", kTruncate},
      {"error", kError},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<BadRecords> {
  using enum BadRecords;
  static constexpr auto all = std::to_array<Word<BadRecords>>({
      {"error", kError},
      {"skip", kSkip},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Objective> {
  static constexpr auto all = [] {
    std::array<Word<Objective>, kObjectives.size() + kOtherObjectives.size()> words{};
    auto* end = words.begin();
    for (const ObjectiveInfo& info : kObjectives) *end++ = {info.name, info.objective};
    for (const std::string_view name : kOtherObjectives)
      *end++ = {name, Objective{}, WordKind::kUnsupported};
    return words;
  }();
  /// What other tools call one of them.
  static constexpr auto others = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"rm", "reward"},
      {"reward_model", "reward"},
      {"reward_modeling", "reward"},
      {"gkd", "distill"},
      {"kd", "distill"},
      {"distillation", "distill"},
      {"classification", "classify"},
      {"seq_cls", "classify"},
      {"embedding", "embed"},
      {"ppo", "grpo"},
      {"rloo", "grpo"},
      {"pt", "sft"},
      {"pretrain", "sft"},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<FDivergence> {
  using enum FDivergence;
  static constexpr auto all = std::to_array<Word<FDivergence>>({
      {"reverse_kl", kReverseKl},
      {"forward_kl", kForwardKl},
      {"js_divergence", kJs},
      {"alpha_divergence", kAlpha},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Scheduler> {
  using enum Scheduler;
  static constexpr auto all = std::to_array<Word<Scheduler>>({
      {"constant", kConstant},
      {"constant_with_warmup", kConstantWithWarmup},
      {"linear", kLinear},
      {"cosine", kCosine},
      {"cosine_with_restarts", kCosineWithRestarts},
      {"polynomial", kPolynomial},
      {"inverse_sqrt", kInverseSqrt},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Optimizer> {
  static constexpr auto all = [] {
    std::array<Word<Optimizer>, kOptimizers.size() + count_names(&OptimizerInfo::aliases)> words{};
    auto* end = words.begin();
    for (const OptimizerInfo& info : kOptimizers) {
      *end++ = {info.name, info.optimizer};
      for (const std::string_view alias : info.aliases)
        *end++ = {alias, info.optimizer, WordKind::kAlias};
    }
    return words;
  }();
  static constexpr std::string_view instead{};
};

template <>
struct Words<MuonLearningRate> {
  using enum MuonLearningRate;
  static constexpr auto all = std::to_array<Word<MuonLearningRate>>({
      {"match_rms_adamw", kMatchRmsAdamW},
      {"original", kOriginal},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<WarmupFrom> {
  using enum WarmupFrom;
  static constexpr auto all = std::to_array<Word<WarmupFrom>>({
      {"auto", kAuto},
      {"zero", kZero},
      {"first_step", kFirstStep},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<ImportanceLevel> {
  using enum ImportanceLevel;
  static constexpr auto all =
      std::to_array<Word<ImportanceLevel>>({{"token", kToken}, {"sequence", kSequence}});
  static constexpr std::string_view instead{};
};
template <>
struct Words<ScaleRewards> {
  using enum ScaleRewards;
  static constexpr auto all = std::to_array<Word<ScaleRewards>>({
      {"group", kGroup},
      {"batch", kBatch},
      {"none", kNone},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<SamplingCorrection> {
  using enum SamplingCorrection;
  static constexpr auto all = std::to_array<Word<SamplingCorrection>>({
      {"off", kOff},
      {"token_truncate", kTokenTruncate},
      {"token_mask", kTokenMask},
      {"sequence_truncate", kSequenceTruncate},
      {"sequence_mask", kSequenceMask},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<ReferenceLogps> {
  using enum ReferenceLogps;
  static constexpr auto all = std::to_array<Word<ReferenceLogps>>({
      {"online", kOnline},
      {"precomputed", kPrecomputed},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<Pooling> {
  using enum Pooling;
  static constexpr auto all = std::to_array<Word<Pooling>>({
      {"last", kLast},
      {"mean", kMean},
      {"lasttoken", kLast, WordKind::kAlias},
      {"last_token", kLast, WordKind::kAlias},
      {"cls", Pooling{}, WordKind::kUnsupported},
      {"max", Pooling{}, WordKind::kUnsupported},
      {"weightedmean", Pooling{}, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<ProblemType> {
  using enum ProblemType;
  static constexpr auto all = std::to_array<Word<ProblemType>>({
      {"auto", kAuto},
      {"single_label_classification", kSingleLabel},
      {"multi_label_classification", kMultiLabel},
      {"regression", ProblemType{}, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<SaveStrategy> {
  using enum SaveStrategy;
  static constexpr auto all = std::to_array<Word<SaveStrategy>>({
      {"steps", kSteps},
      {"epoch", kEpoch},
      {"no", kSteps, WordKind::kUnsupported},
      {"false", kSteps, WordKind::kUnsupported},
      {"best", kSteps, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead =
      "use steps or epoch. For no checkpoint before the end: save_every: 0, without save_steps. "
      "For one at each best evaluation: load_best_model_at_end: true";
};

template <>
struct Words<EvalStrategy> {
  using enum EvalStrategy;
  static constexpr auto all = std::to_array<Word<EvalStrategy>>({
      {"auto", kAuto},
      {"no", kNo},
      {"steps", kSteps},
      {"epoch", kEpoch},
      // In YAML 1.1 unquoted `no` and `off` are the boolean false.
      {"off", kNo, WordKind::kAlias},
      {"false", kNo, WordKind::kAlias},
      {"none", kNo, WordKind::kAlias},
  });
  static constexpr std::string_view instead{};
};

template <>
struct Words<AttentionChoice> {
  using enum AttentionChoice;
  static constexpr auto all = std::to_array<Word<AttentionChoice>>({
      {"auto", kAuto},
      {"flash", kFlash},
      {"cudnn", kCudnn},
      {"measure", kMeasure},
      {"flash_attention_2", kFlash, WordKind::kAlias},
      {"flash_attention_3", kAuto, WordKind::kUnsupported},
      {"flex_attention", kAuto, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead = "use auto, flash, cudnn or measure";
};

/// auto, on and off.
template <class Switch>
struct SwitchWords {
  static constexpr auto all = std::to_array<Word<Switch>>({
      {"auto", Switch::kAuto},
      {"on", Switch::kOn},
      {"off", Switch::kOff},
      // In YAML 1.1 unquoted `on` and `off` are booleans.
      {"true", Switch::kOn, WordKind::kAlias},
      {"yes", Switch::kOn, WordKind::kAlias},
      {"false", Switch::kOff, WordKind::kAlias},
      {"no", Switch::kOff, WordKind::kAlias},
  });
  static constexpr std::string_view instead = "use auto, on or off";
};
template <>
struct Words<CudaGraphs> : SwitchWords<CudaGraphs> {};
template <>
struct Words<SaveInBackground> : SwitchWords<SaveInBackground> {};
template <>
struct Words<LongestBatchFirst> : SwitchWords<LongestBatchFirst> {};

template <>
struct Words<CheckpointFormat> {
  using enum CheckpointFormat;
  static constexpr auto all = std::to_array<Word<CheckpointFormat>>({
      {"auto", kAuto},
      {"whole", kWhole},
  });
  static constexpr std::string_view instead = "use auto or whole";
};

template <>
struct Words<Checkpointing> {
  using enum Checkpointing;
  static constexpr auto all = std::to_array<Word<Checkpointing>>({
      {"true", kLayer},
      {"false", kNone},
      {"attention", kAttention},
      {"mlp", kMlp},
      {"layer", kLayer, WordKind::kAlias},
      {"off", kNone, WordKind::kAlias},
      {"no", kNone, WordKind::kAlias},
      {"on", kLayer, WordKind::kAlias},
      {"yes", kLayer, WordKind::kAlias},
  });
  static constexpr std::string_view instead = "use true, false, attention or mlp";
};

template <>
struct Words<Strategy> {
  static constexpr auto all = [] {
    constexpr size_t kCount =
        std::transform_reduce(kStrategies.begin(), kStrategies.end(), size_t{0}, std::plus<>(),
                              [](const StrategyRow& row) { return 1 + row.aliases.size(); });
    std::array<Word<Strategy>, kCount> words{};
    auto* end = words.begin();
    for (const StrategyRow& row : kStrategies) {
      *end++ = {row.name, row.strategy};
      for (const std::string_view alias : row.aliases)
        *end++ = {alias, row.strategy, WordKind::kAlias};
    }
    return words;
  }();
  static constexpr std::string_view instead =
      "use fsdp, pipeline or tensor, which divide the model over the devices, or ddp";
};

template <>
struct Words<CommHook> {
  using enum CommHook;
  static constexpr auto all = std::to_array<Word<CommHook>>({
      {"none", kNone},
      {"bf16", kBf16},
      {"no", kNone, WordKind::kAlias},
      {"fp32", kNone, WordKind::kAlias},
      {"bf16_compress", kBf16, WordKind::kAlias},
      {"fp16", kNone, WordKind::kUnsupported},
      {"fp16_compress", kNone, WordKind::kUnsupported},
      {"power_sgd", kNone, WordKind::kUnsupported},
      {"batched_power_sgd", kNone, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead = "use bf16, or none for fp32";
};

template <>
struct Words<Fetch> {
  using enum Fetch;
  static constexpr auto all = std::to_array<Word<Fetch>>({
      {"auto", kAuto},
      {"per_micro_batch", kPerMicroBatch},
      {"per_step", kPerStep},
  });
  static constexpr std::string_view instead = "use auto, per_micro_batch or per_step";
};

template <>
struct Words<Offload> {
  using enum Offload;
  static constexpr auto all = std::to_array<Word<Offload>>({
      {"none", kNone},
      {"cpu", kCpu},
      {"true", kCpu, WordKind::kAlias},
      {"yes", kCpu, WordKind::kAlias},
      {"on", kCpu, WordKind::kAlias},
      {"host", kCpu, WordKind::kAlias},
      {"false", kNone, WordKind::kAlias},
      {"no", kNone, WordKind::kAlias},
      {"off", kNone, WordKind::kAlias},
      {"nvme", kNone, WordKind::kUnsupported},
  });
  static constexpr std::string_view instead = "use cpu (host memory) or none";
};

template <>
struct Words<CommBackend> {
  using enum CommBackend;
  static constexpr auto all = std::to_array<Word<CommBackend>>({
      {"auto", kAuto},
      {"nccl", kNccl},
      {"gloo", kGloo},
  });
  static constexpr std::string_view instead{};
};

/// Whether the word is known, but not supported in this version.
template <class E>
bool is_unsupported(std::string_view text) {
  return std::any_of(Words<E>::all.begin(), Words<E>::all.end(), [&](const Word<E>& word) {
    return word.text == text && word.kind == WordKind::kUnsupported;
  });
}

/// The word for config.resolved.yaml.
template <class E>
constexpr std::string_view word_of(E value) {
  for (const auto& word : Words<E>::all) {
    if (word.value == value && word.kind != WordKind::kAlias) return word.text;
  }
  return {};  // not reached: a test checks that every enumerator has a word
}

}  // namespace sftrun::config
