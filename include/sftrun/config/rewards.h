#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/problem.h"
#include "sftrun/config/server_url.h"
#include "sftrun/config/value.h"
#include "sftrun/core/name_list.h"
#include "sftrun/core/rows.h"

/// The functions that judge answers: one row each, with the settings that it reads. The entries that
/// compute them are in src/reward/functions/. docs/rewards.md explains them.
namespace sftrun::config {

enum class Reward : uint8_t {
  kExactMatch,
  kRegex,
  kNumber,
  kJson,
  kLength,
  kFormat,
  kRepetition,
  kRougeL,
  kProgram,
  kHttp,
  kRewardModel
};

/// A setting of one function.
struct RewardSetting {
  enum class Type : uint8_t {
    kText,
    kTexts,  ///< a list; one text is a list of one
    kNumber,
    kCount,  ///< a whole number
    kFlag,
    kChoice,  ///< one of `choices`
  };
  std::string_view name;
  Type type;
  std::string_view fallback;  ///< the default as JSON; empty: none, and the setting may be missing
  std::string_view description;
  std::string_view example;
  double min = std::numeric_limits<double>::lowest(), max = 1e12;
  bool above_min = false;  ///< `min` itself is out
  NameList choices = {};
  bool is_required = false;
  std::string_view only_with = {};  ///< another setting, without which this one has no effect
  bool may_change = false;  ///< values do not depend on it, so that a resumed run may have another
  std::optional<UrlEnd> url_end = {};  ///< of the address of a server; nullopt: it is none
};

struct RewardInfo {
  Reward reward;
  std::string_view name;         ///< in configurations and messages
  std::string_view description;  ///< for help texts
  std::string_view formula;      ///< of the value, before its weight
  std::span<const RewardSetting> settings = {};
  NameList exactly_one = {};  ///< settings of which one must be given, and not two
  NameList other_names = {};  ///< of other tools, for suggestions
};

namespace reward_rows {
using enum RewardSetting::Type;

inline constexpr std::string_view kKeyHelp = "key of the record that has the reference";

inline constexpr auto kExactMatchSettings =
    std::to_array<RewardSetting>({{"key", kText, R"("answer")", kKeyHelp, "solution"},
                                  {"ignore_case", kFlag, "false",
                                   "ASCII letters in upper and lower case are the same", "true"}});
inline constexpr auto kRegexSettings = std::to_array<RewardSetting>(
    {{.name = "pattern",
      .type = kText,
      .description = "a regular expression of Python's re; (?s) lets a dot match line ends",
      .example = R"('\d+\.')",
      .is_required = true},
     {.name = "match",
      .type = kChoice,
      .fallback = R"("search")",
      .description = "search: anywhere; start: from the beginning; full: the whole answer",
      .example = "full",
      .choices = {"search", "start", "full"}}});
inline constexpr auto kNumberSettings = std::to_array<RewardSetting>(
    {{"key", kText, R"("answer")", kKeyHelp, "solution"},
     {.name = "find",
      .type = kChoice,
      .fallback = R"("auto")",
      .description =
          R"(where the number stands: boxed: in the last \boxed{}; hashes: behind the last ####; last: the last number of the answer; auto: the first of these that is there)",
      .example = "boxed",
      .choices = {"auto", "boxed", "hashes", "last"}},
     {.name = "tolerance",
      .type = kNumber,
      .fallback = "1e-6",
      .description = "t in the formula",
      .example = "0.01",
      .min = 0}});
inline constexpr auto kJsonSettings = std::to_array<RewardSetting>(
    {{"keys", kTexts, "[]", "keys that the object must have", "[name, age]"},
     {.name = "type",
      .type = kChoice,
      .fallback = R"("any")",
      .description = "what the text must be; with `keys` an object",
      .example = "object",
      .choices = {"any", "object", "array"}},
     {"fence", kFlag, "true", "the text may be in a fenced code block", "false"},
     {.name = "partial",
      .type = kFlag,
      .fallback = "false",
      .description = "an object with some of the keys gets their share",
      .example = "true",
      .only_with = "keys"}});
inline constexpr auto kLengthSettings = std::to_array<RewardSetting>(
    {{.name = "target",
      .type = kCount,
      .description = "the wanted length",
      .example = "200",
      .min = 1},
     {.name = "maximum",
      .type = kCount,
      .description = "the largest length that costs less than 1",
      .example = "512",
      .min = 1},
     {.name = "margin",
      .type = kCount,
      .fallback = "0",
      .description = "below the maximum: lengths within it cost a part",
      .example = "128",
      .min = 0,
      .only_with = "maximum"},
     {.name = "unit",
      .type = kChoice,
      .fallback = R"("characters")",
      .description = "what is counted: characters of Unicode, words between white space, or tokens",
      .example = "tokens",
      .choices = {"characters", "words", "tokens"}}});
inline constexpr auto kFormatSettings = std::to_array<RewardSetting>(
    {{"tags", kTexts, R"(["think", "answer"])", "names of the parts, in their order", "[think]"},
     {"strict", kFlag, "true", "nothing but white space between and after the parts", "false"}});
inline constexpr auto kRepetitionSettings =
    std::to_array<RewardSetting>({{.name = "ngram",
                                   .type = kCount,
                                   .fallback = "3",
                                   .description = "tokens of a group",
                                   .example = "4",
                                   .min = 1,
                                   .max = 1000},
                                  {.name = "penalty",
                                   .type = kNumber,
                                   .fallback = "-1",
                                   .description = "of an answer that only repeats",
                                   .example = "-0.5",
                                   .max = 0}});
inline constexpr auto kRougeLSettings =
    std::to_array<RewardSetting>({{"key", kText, R"("answer")", kKeyHelp, "summary"},
                                  {.name = "measure",
                                   .type = kChoice,
                                   .fallback = R"("fmeasure")",
                                   .description = "fmeasure, precision or recall",
                                   .example = "recall",
                                   .choices = {"fmeasure", "precision", "recall"}}});
inline constexpr auto kProgramSettings = std::to_array<RewardSetting>(
    {{.name = "command",
      .type = kText,
      .description = "for `sh -c`, in the directory where sftrun was started",
      .example = "python3 judge.py",
      .is_required = true},
     {.name = "timeout",
      .type = kNumber,
      .fallback = "60",
      .description = "seconds for the answers of one batch; then the program is killed",
      .example = "300",
      .min = 0,
      .max = 1e6,
      .above_min = true,
      .may_change = true},
     {.name = "restarts",
      .type = kCount,
      .fallback = "2",
      .description = "times that it is started again for one batch, where it ended or was killed",
      .example = "0",
      .min = 0,
      .max = 1000,
      .may_change = true}});
/// Of requests to servers.
inline constexpr RewardSetting kRequestTimeout = {.name = "timeout",
                                                  .type = kNumber,
                                                  .fallback = "60",
                                                  .description = "seconds for one request",
                                                  .example = "300",
                                                  .min = 0,
                                                  .max = 1e6,
                                                  .above_min = true,
                                                  .may_change = true};
inline constexpr RewardSetting kRequestRetries = {
    .name = "retries",
    .type = kCount,
    .fallback = "3",
    .description = "further attempts where the server does not answer or is busy",
    .example = "0",
    .min = 0,
    .max = 1000,
    .may_change = true};
inline constexpr RewardSetting kRequestToken = {
    .name = "token_variable",
    .type = kText,
    .description = "environment variable whose value is sent as a bearer token",
    .example = "JUDGE_TOKEN",
    .may_change = true};

inline constexpr auto kHttpSettings =
    std::to_array<RewardSetting>({{.name = "url",
                                   .type = kText,
                                   .description = "address of a server, http or https",
                                   .example = "http://127.0.0.1:9000/rewards",
                                   .is_required = true,
                                   .may_change = true,
                                   .url_end = UrlEnd::kQuery},
                                  kRequestTimeout,
                                  kRequestRetries,
                                  kRequestToken});
inline constexpr auto kRewardModelSettings = std::to_array<RewardSetting>(
    {{.name = "url",
      .type = kText,
      .description = "address of `sftrun serve` or `vllm serve` with a reward model",
      .example = "http://127.0.0.1:8000",
      .is_required = true,
      .may_change = true,
      .url_end = UrlEnd::kPath},
     {.name = "model",
      .type = kText,
      .description = "the server's name for the model, where it serves several",
      .example = "judge",
      .may_change = true},
     {.name = "chat",
      .type = kFlag,
      .fallback = {},
      .description =
          "a prompt that is a text is a user's turn, else prompt and answer are one text; without "
          "it "
          "as the run writes its prompts (`train.rollouts.chat`), and in `sftrun reward` false",
      .example = "true"},
     {.name = "activation",
      .type = kFlag,
      .fallback = "false",
      .description = "the sigmoid of the score, and not the score itself",
      .example = "true"},
     {.name = "batch_size",
      .type = kCount,
      .fallback = "32",
      .description = "requests at a time",
      .example = "8",
      .min = 1,
      .max = 256,
      .may_change = true},
     kRequestTimeout,
     kRequestRetries,
     kRequestToken});

}  // namespace reward_rows

/// In the order of the enumerators.
inline constexpr auto kRewards = std::to_array<RewardInfo>(
    {{.reward = Reward::kExactMatch,
      .name = "exact_match",
      .description = "the answer is the text of a key of the record",
      .formula = "1 if both texts are equal, but for white space at both ends, else 0",
      .settings = reward_rows::kExactMatchSettings,
      .other_names = {"accuracy", "equal", "match"}},
     {.reward = Reward::kRegex,
      .name = "regex",
      .description = "the answer matches a regular expression",
      .formula = "1 if it matches, else 0",
      .settings = reward_rows::kRegexSettings,
      .other_names = {"pattern", "regexp"}},
     {.reward = Reward::kNumber,
      .name = "number",
      .description = "the answer has the number of the record",
      .formula = "1 if |x - y| <= t max(1, |y|), else 0; x in the answer, y in the record",
      .settings = reward_rows::kNumberSettings,
      .other_names = {"numeric", "math", "gsm8k", "accuracy_reward"}},
     {.reward = Reward::kJson,
      .name = "json",
      .description = "the answer is JSON, optionally with some keys",
      .formula = "1 if it is, else 0; partial: (1 + keys that it has) / (1 + keys) of an object",
      .settings = reward_rows::kJsonSettings},
     {.reward = Reward::kLength,
      .name = "length",
      .description = "how near the answer's length n is to a target, or below a maximum",
      .formula = "target: max(0, 1 - |n - target| / target); maximum: 0 up to maximum - margin, "
                 "then (maximum - margin - n) / margin, and -1 above the maximum (DAPO, "
                 "arXiv:2503.14476, equation 13)",
      .settings = reward_rows::kLengthSettings,
      .exactly_one = {"target", "maximum"},
      .other_names = {"soft_overlong_punishment"}},
     {.reward = Reward::kFormat,
      .name = "format",
      .description = "the answer has its parts in tags: `<think>…</think><answer>…</answer>`",
      .formula = "1 if the answer is <tag>, a text without these tags, and </tag> for each of the "
                 "tags, else 0",
      .settings = reward_rows::kFormatSettings,
      .other_names = {"think_format", "tags", "xml"}},
     {.reward = Reward::kRepetition,
      .name = "repetition",
      .description = "the answer repeats groups of tokens",
      .formula = "penalty (1 - different groups / groups) (arXiv:2502.03373, appendix C.2)",
      .settings = reward_rows::kRepetitionSettings,
      .other_names = {"repetition_penalty"}},
     {.reward = Reward::kRougeL,
      .name = "rouge_l",
      .description = "ROUGE-L of the answer and the text of a key of the record",
      .formula = "longest common subsequence of words: as share of the answer (precision), of the "
                 "reference (recall), or their harmonic mean",
      .settings = reward_rows::kRougeLSettings,
      .other_names = {"rouge", "rougel"}},
     {.reward = Reward::kProgram,
      .name = "program",
      .description = "a program that reads JSON lines and answers one number for each",
      .formula = "what the program says",
      .settings = reward_rows::kProgramSettings,
      .other_names = {"command", "script", "python"}},
     {.reward = Reward::kHttp,
      .name = "http",
      .description = "a server that answers a request with a number for each record",
      .formula = "what the server says",
      .settings = reward_rows::kHttpSettings,
      .other_names = {"url", "server", "endpoint", "remote"}},
     {.reward = Reward::kRewardModel,
      .name = "reward_model",
      .description = "the score of a reward model that `sftrun serve` or `vllm serve` has",
      .formula = "the model's score of prompt and answer; activation: 1 / (1 + exp(-score))",
      .settings = reward_rows::kRewardModelSettings,
      .other_names = {"model", "classifier", "rm", "vllm", "score"}}});
static_assert(are_in_order(kRewards, &RewardInfo::reward));

constexpr const RewardInfo& reward_info(Reward reward) {
  return kRewards[static_cast<size_t>(reward)];
}

/// One function of a run.
struct RewardSpec {
  Reward reward = Reward::kExactMatch;
  std::string label;  ///< in metrics and output; the row's name by default
  double weight = 1;  ///< its value is multiplied by it in the sum
  /// Each setting of the row, with its default where it is not given; null: it has none.
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  std::string where;  ///< "rewards.yaml:3:5", for errors; not compared

  bool operator==(const RewardSpec& other) const {
    return reward == other.reward && label == other.label && weight == other.weight &&
           settings == other.settings;
  }
};
using RewardSpecs = std::vector<RewardSpec>;

/// Reads one function or a list of them: a name, or a map with `name`, `weight`, `label` and the
/// settings of its row.
/// @param place of the value where it has no line: a flag, a key
/// @param problems receives all problems, at `file`:line:column
RewardSpecs parse_rewards(const Value& value, const std::string& place, Problems& problems);
/// Reads a YAML or JSON file with such a list, or with a map whose only key is `reward`.
/// @throws ConfigProblems, DataError if it cannot be read
RewardSpecs read_rewards(const std::string& file);
/// The list as `parse_rewards` reads it, without defaults.
nlohmann::ordered_json to_json(const RewardSpecs& rewards);
/// The same without settings on which values do not depend.
RewardSpecs without_ways(RewardSpecs rewards);

/// The tables of docs/rewards.md.
std::string reward_reference();

}  // namespace sftrun::config
