#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>

#include "cli.h"
#include "config_init.h"
#include "model_source.h"
#include "run_check.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/config/rewards.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/yaml_name.h"
#include "sftrun/data/likely_objective.h"
#include "sftrun/data/record_reader.h"
#include "sftrun/data/small_data.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/plan/micro_batch.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

/// The largest model whose LoRA training usually fits, in bf16 with short sequences.
std::string suggested_model(const MachineView& machine) {
  constexpr uint64_t kGiB = 1ULL << 30;
  if (!machine.trains_on_gpu()) return "HuggingFaceTB/SmolLM2-135M-Instruct";
  const uint64_t bytes = machine.device_bytes();
  if (bytes >= 40 * kGiB) return "Qwen/Qwen3-8B";
  if (bytes >= 20 * kGiB) return "Qwen/Qwen3-4B";
  if (bytes >= 10 * kGiB) return "Qwen/Qwen3-1.7B";
  return "Qwen/Qwen3-0.6B";
}

/// "; did you mean `models/llama`?", or nothing.
std::string guess_of_path(const std::string& text, PathKind kind) {
  const std::string near = near_path(text, kind);
  return near.empty() ? "" : fmt::format("; did you mean `{}`?", near);
}

std::string check_model(std::string& text) {
  if (leads_to_file(text) || hub::parse_model_name(text)) return {};
  return fmt::format("`{}` is neither a file or folder here nor a name on the hub (owner/name){}",
                     text, guess_of_path(text, PathKind::kModel));
}

std::string check_data(std::string& text) {
  if (exists_or_matches(text) || hub::parse_dataset_name(text)) return {};
  return fmt::format("`{}` is neither a file, folder or pattern here nor a data set on the hub{}",
                     text, guess_of_path(text, PathKind::kData));
}

std::optional<std::string> first_that_exists(std::initializer_list<const char*> paths) {
  for (const char* path : paths)
    if (leads_to_file(path)) return path;
  return std::nullopt;
}

/// What is known of a model that is on this machine; nullopt: it is on the hub, or cannot be read.
std::optional<ModelHeaders> headers_of(const std::string& model) {
  if (!leads_to_file(model)) return std::nullopt;
  try {
    return read_headers(model);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// "qlora" if the weights fill too much of the device for LoRA.
std::string suggested_mode(const MachineView& machine, const std::optional<ModelHeaders>& headers) {
  constexpr double kShare = 0.7;  // activations need the rest
  constexpr int64_t kHalfBytes = 2, kFullBytes = 4;
  if (!headers || headers->stored.empty()) return "lora";
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kLora;
  const bool on_gpu = machine.trains_on_gpu();
  const int64_t bytes = plan::static_bytes(headers->arch, config, on_gpu ? kHalfBytes : kFullBytes,
                                           headers->stored, {.on_gpu = on_gpu});
  return static_cast<double>(bytes) > kShare * static_cast<double>(machine.device_bytes()) ? "qlora"
                                                                                           : "lora";
}

std::string suggested_seq_len(const MachineView& machine,
                              const std::optional<ModelHeaders>& headers) {
  constexpr int64_t kGpu = 2048, kCpu = 512;
  int64_t tokens = machine.trains_on_gpu() ? kGpu : kCpu;
  if (headers && headers->arch.max_position_embeddings > 0)
    tokens = std::min(tokens, headers->arch.max_position_embeddings);
  return std::to_string(tokens);
}

/// What the data are used for.
struct DataUse {
  config::Objective objective = config::Objective::kSft;
  bool is_chosen = false;                    ///< the objective is not by the columns
  bool answers_prompts = false;              ///< the run itself does
  data::Json fields = data::Json::object();  ///< `data.fields`
  /// The first, with the names of --fields if they are given; nullopt: not known.
  std::optional<data::Json> record = {};
  std::vector<std::string> unused = {};  ///< columns of the first that the run does not read
  const config::ObjectiveInfo& info() const { return config::objective_info(objective); }
};

/// nullopt: of folders, patterns and the hub, and of what the checks of the configuration report.
std::optional<data::Json> first_record(const std::string& data) {
  if (!is_plain_file(data)) return std::nullopt;
  try {
    const auto reader = data::open_records(data);
    const auto block = reader->next();
    return block == nullptr ? std::nullopt : std::optional(block->parse(0, data));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// --reward alone: the run answers the questions of the records.
void require_questions(const DataUse& use, const std::string& data) {
  if (!use.record || data::has_question(*use.record)) return;
  throw ConfigError(
      fmt::format("--reward has no effect: the first record of {} has no prompt or question that "
                  "the run could answer",
                  data),
      "--reward on the command line", "leave it out, or name a file of prompts with --data");
}

/// By --objective, --reward or the first record.
config::Objective objective_of(const DataUse& use, const std::string& data,
                               const InitOptions& options) {
  if (options.objective) return config::find_objective(*options.objective)->objective;
  if (!options.rewards.empty()) {
    require_questions(use, data);
    return config::Objective::kGrpo;
  }
  return use.record ? data::likely_objective(*use.record) : config::Objective::kSft;
}

/// @throws ConfigError for flags that the objective does not read
void require_read(const InitOptions& options, const config::ObjectiveInfo& objective) {
  const auto refuse = [&](const char* flag, const char* other) {
    throw ConfigError(fmt::format("{} has no effect with the objective {}", flag, objective.name),
                      fmt::format("{} on the command line", flag),
                      fmt::format("leave it out, or set --objective to {}", other));
  };
  if (!options.rewards.empty() && !objective.takes_rollouts) refuse("--reward", "grpo");
  if (options.teacher && !objective.needs_teacher) refuse("--teacher", "distill");
}

/// Whether the record is an answer that has a reward.
bool is_rewarded(const data::Json& record) {
  return data::likely_objective(record) == config::Objective::kGrpo &&
         !data::is_prompt_alone(record);
}

/// --fields: a comma that no `KEY=` follows is a part of the column's name.
/// @throws ConfigError for names that `data.fields` has not
data::Json fields_of_flags(const std::vector<std::string>& flags) {
  constexpr const char* kWhere = "--fields on the command line";
  data::Json fields = data::Json::object();
  std::string last;
  for (const std::string& flag : flags) {
    last.clear();
    for (const std::string& part : split(flag, ',')) {
      const size_t equals = part.find('=');
      if (equals == std::string::npos && !last.empty()) {
        fields[last] = fields[last].get<std::string>() + "," + part;
        continue;
      }
      last = equals == std::string::npos ? "" : std::string(trim(part.substr(0, equals)));
      if (last.empty())
        throw ConfigError(fmt::format("`{}` is no KEY=COLUMN", part), kWhere,
                          "write our name, =, and the column: instruction=question");
      fields[last] = std::string(trim(part.substr(equals + 1)));
    }
  }
  std::vector<std::string> known = config::record_columns();
  known.insert(known.end(), config::kTurnFields.begin(), config::kTurnFields.end());
  for (const auto& [ours, theirs] : fields.items())
    if (std::find(known.begin(), known.end(), ours) == known.end())
      throw ConfigError(fmt::format("`{}` is no name of data.fields", ours), kWhere,
                        fmt::format("use one of: {}", join(known, ", ")));
  return fields;
}

/// What `data.fields` has if no flag says it.   @pre use.record
data::Json likely_fields_of(const DataUse& use) {
  const config::ObjectiveInfo& info = use.info();
  if (info.embeds()) return data::likely_fields_of_texts(*use.record);
  data::Json fields = data::Json::object();
  if (use.answers_prompts || info.reads_answers() || info.reads_judgements() ||
      data::likely_objective(*use.record) == config::Objective::kDpo)
    fields = data::likely_fields(*use.record, use.answers_prompts);
  if (info.reads_judgements()) fields.update(data::likely_fields_of_label(*use.record));
  return fields;
}

/// @throws ConfigError if the flags contradict each other or the record, DataError if the record lacks
/// what the objective needs
DataUse use_of(const std::string& data, const InitOptions& options) {
  DataUse use{.is_chosen = options.objective || !options.rewards.empty(),
              .record = first_record(data)};
  const data::Json given = fields_of_flags(options.fields);
  const std::string where = fmt::format("{}:1", data);
  if (use.record && !given.empty()) use.record = data::mapped_record(*use.record, given, where);
  use.objective = objective_of(use, data, options);
  require_read(options, use.info());
  const bool has_prompts = use.record && !is_rewarded(*use.record);
  use.answers_prompts = use.info().takes_rollouts && (!options.rewards.empty() || has_prompts);
  if (use.record) {
    const data::Json likely = given.empty() ? likely_fields_of(use) : data::Json::object();
    if (use.is_chosen)
      data::require_fit(*use.record, likely, use.objective, use.answers_prompts, where);
    if (!use.answers_prompts)  // judges get whole records
      use.unused =
          data::unused_columns(data::mapped_record(*use.record, likely, where), use.objective);
    use.fields = likely;
  }
  if (!given.empty()) use.fields = given;
  return use;
}

/// Learning rates that the documents of the objectives advise.
struct SuggestedRate {
  const char *rate, *why;
};
SuggestedRate suggested_rate(config::Objective objective, bool is_full) {
  const config::ObjectiveInfo& info = config::objective_info(objective);
  if (info.has_scores())
    return is_full ? SuggestedRate{"1.0e-5", "a tenth of LoRA's"}
                   : SuggestedRate{"1.0e-4", "usual for heads of scores"};
  if (info.reads_pairs() || info.reads_judgements())
    return is_full ? SuggestedRate{"5.0e-7", "a tenth of LoRA's"}
                   : SuggestedRate{"5.0e-6", "usual for answers that are compared or judged"};
  if (info.embeds())
    return is_full ? SuggestedRate{"1.0e-5", "a tenth of LoRA's"}
                   : SuggestedRate{"1.0e-4", "usual for embedding models"};
  if (info.reads_samples())
    return is_full ? SuggestedRate{"1.0e-6", "a tenth of LoRA's"}
                   : SuggestedRate{"1.0e-5", "usual for sampled answers"};
  return is_full ? SuggestedRate{"2.0e-5", "a tenth of LoRA's"}
                 : SuggestedRate{"2.0e-4", "usual for LoRA"};
}

/// The line of train.objective; "": it is the default.
std::string objective_line(const DataUse& use) {
  if (use.objective == config::Objective::kSft) return "";
  return fmt::format("  objective: {:<18}# {}docs/objectives.md\n", use.info().name,
                     use.is_chosen ? "" : "by the columns of the data; ");
}

/// The line of data.fields; "": the records are read as they are.
std::string fields_line(const DataUse& use) {
  std::vector<std::string> fields;
  for (const auto& [ours, theirs] : use.fields.items())
    fields.push_back(fmt::format("{}: {}", ours, yaml_name(theirs.get<std::string>())));
  if (fields.empty()) return "";
  return fmt::format("  fields: {:<20} # our names, and the columns of the data; docs/data.md\n",
                     fmt::format("{{{}}}", join(fields, ", ")));
}

/// Whether the data leave nothing to validate on (the help of --val-split names the number).
bool has_few_records(const std::string& data) {
  constexpr int kMinRecords = 100;
  if (!data.ends_with(".jsonl") || !is_plain_file(data)) return false;
  std::ifstream file(data);
  int lines = 0;
  for (std::string line; lines < kMinRecords && std::getline(file, line);) ++lines;
  return lines < kMinRecords;
}

Question question_of_val_split(const std::string& data) {
  const bool is_few = has_few_records(data);
  return {"--val-split", "Share of the records to hold out for validation",
          is_few ? "0: none, because the data have fewer than 100 records"
                 : "shows whether the model overfits; 0: none, for few records",
          is_few ? "0" : "0.05", in_range(0, 0.5)};
}

/// A text as YAML: quoted unless it is a plain path or name with a slash or a dot, which YAML reads as
/// text.
std::string yaml_word(const std::string& text) {
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const auto is_path_char = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./").find(static_cast<char>(c)) != std::string_view::npos;
  };
  const bool is_plain = !text.empty() && (is_letter(text.front()) || text.front() == '/') &&
                        std::all_of(text.begin(), text.end(), is_path_char) &&
                        text.find_first_of("./") != std::string::npos;
  return is_plain ? text : nlohmann::json(text).dump();
}

/// Whether a function finds in the record what it compares answers with. A function that is named
/// alone, and whose usual key is not there, gets the key of the record that it may mean.
std::string check_reference(std::string& text, const config::RewardSpec& reward,
                            const data::Json& record) {
  const auto key = reward.settings.find("key");
  if (key == reward.settings.end() || record.contains(key->get<std::string>())) return {};
  const std::string_view name = config::reward_info(reward.reward).name;
  const std::string other = data::likely_reference(record, reward.reward);
  if (!other.empty() && trim(text) == name) {
    text = fmt::format("{{name: {}, key: {}}}", name, other);
    return {};
  }
  std::vector<std::string> keys;
  for (const auto& [one, value] : record.items()) keys.push_back(fmt::format("\"{}\"", one));
  return fmt::format(
      "the reward {} compares answers with the key \"{}\" of a record, which the first one does "
      "not have (its keys: {}); name another: {{name: {}, key: {}}}",
      name, key->get<std::string>(), excerpt(join(keys, ", ")), name,
      other.empty() ? "KEY" : other);
}

/// A function, or a list of them, as `train.rollouts.reward` has it.
std::string check_reward(std::string& text, const std::optional<data::Json>& record) {
  config::Problems problems;
  config::RewardSpecs rewards;
  try {
    rewards = config::parse_rewards(config::parse_yaml_value(text), "the answer", problems);
  } catch (const config::ConfigProblems& error) {
    problems = error.problems;
  }
  if (!problems.empty())
    return fmt::format("{}; {}", problems.front().message, problems.front().fix);
  std::string complaint;
  for (const config::RewardSpec& reward : rewards)
    if (complaint.empty() && record) complaint = check_reference(text, reward, *record);
  return complaint;
}

/// What --reward has: a function, or a list of them; nullopt: it is not given. A key that a record
/// has under another name is corrected in each.
std::optional<std::string> given_reward(const std::vector<std::string>& rewards,
                                        const std::optional<data::Json>& record) {
  if (rewards.empty()) return std::nullopt;
  if (rewards.size() == 1) return rewards.front();
  std::vector<std::string> texts = rewards;
  for (std::string& text : texts) check_reward(text, record);  // the list's check complains
  return fmt::format("[{}]", join(texts, ", "));
}

Question question_of_reward(const DataUse& use) {
  const std::string likely = use.record ? data::likely_reward(*use.record) : "";
  return {"--reward", "What judges the answers",
          likely.empty()
              ? "a function of docs/rewards.md, such as number or {name: program, command: python3 "
                "judge.py}"
              : "the records have what an answer is compared with; docs/rewards.md has others",
          likely.empty() ? std::nullopt : std::optional(likely),
          [record = use.record](std::string& text) { return check_reward(text, record); }};
}

std::string check_teacher(std::string& text) {
  if (exists_or_matches(text) || hub::parse_model_name(text)) return {};
  return fmt::format("`{}` is neither a file or folder here nor a name on the hub (owner/name){}",
                     text, guess_of_path(text, PathKind::kModel));
}

std::string unused_line(const std::vector<std::string>& columns) {
  std::vector<std::string> quoted;
  for (const std::string& column : columns) quoted.push_back(fmt::format("\"{}\"", column));
  return fmt::format(
      "Columns of the data that the run does not read: {} (docs/data.md: data.fields)",
      excerpt(join(quoted, ", ")));
}

/// What a step has where the batch sizes are automatic.
std::string target_text(const config::ObjectiveInfo& objective) {
  return objective.embeds()
             ? fmt::format("{} to {} examples", data::kMinContrasted, data::kMaxContrasted)
             : fmt::format("{} sequences", config::kTargetGlobalBatch);
}

struct RunAnswers {
  std::string model, data, mode, max_seq_len, epochs, val_split;
  DataUse use;  ///< of the data
  std::string reward, teacher;
};

RunAnswers ask_about_run(const InitOptions& options, const MachineView& machine) {
  const Interview interview(options.yes);
  RunAnswers answers;
  answers.model =
      interview.ask({"--model", "Base model",
                     "a name on the hub, a folder or a .gguf file; this size suits the machine",
                     suggested_model(machine), check_model},
                    options.model);
  const auto headers = headers_of(answers.model);
  answers.data = interview.ask(
      {"--data", "Training data", "a file, a folder or a data set on the hub (docs/data.md)",
       first_that_exists({"data/train.jsonl", "train.jsonl", "data"}), check_data},
      options.data);
  answers.use = use_of(answers.data, options);
  if (!answers.use.unused.empty()) fmt::print("{}\n", unused_line(answers.use.unused));
  if (answers.use.answers_prompts)
    answers.reward = interview.ask(question_of_reward(answers.use),
                                   given_reward(options.rewards, answers.use.record));
  if (answers.use.info().needs_teacher)
    answers.teacher = interview.ask(
        {"--teacher", "Teacher",
         "a larger model with the same tokenizer, or a folder of scores (docs/distillation.md)",
         std::nullopt, check_teacher},
        options.teacher);
  answers.val_split = interview.ask(question_of_val_split(answers.data), options.val_split);
  answers.mode =
      interview.ask({"--mode", "What to train",
                     "lora: small adapters; qlora: the same on a 4-bit base; full: all weights",
                     suggested_mode(machine, headers), one_of({"lora", "qlora", "full"})},
                    options.mode);
  answers.max_seq_len = interview.ask(
      {"--max-seq-len", "Longest sequence in tokens", "longer sequences need more memory and time",
       suggested_seq_len(machine, headers), at_least(16)},
      options.max_seq_len);
  answers.epochs = interview.ask(
      {"--epochs", "Passes over the data", "3 is usual for LoRA", "3", in_range(0.01, 1000)},
      options.epochs);
  return answers;
}

/// The lines of train.rollouts; "": the run writes no answers.
std::string rollout_lines(const RunAnswers& answers) {
  if (!answers.use.answers_prompts) return "";
  constexpr int64_t kTokens = 512;
  const int64_t tokens =
      std::min<int64_t>(kTokens, std::max<int64_t>(1, std::stoll(answers.max_seq_len) / 2));
  const bool is_list = trim(answers.reward).starts_with('[');
  return fmt::format(
      "  rollouts:                     # the model answers the prompts between steps; "
      "docs/grpo.md\n"
      "    n: 8                        # answers to each prompt, whose rewards are compared\n"
      "    max_new_tokens: {:<12}# prompt and answer have at most max_seq_len together\n"
      "    reward: {:<19} # what judges the answers; docs/rewards.md\n",
      tokens, is_list ? answers.reward : fmt::format("[{}]", answers.reward));
}

std::string yaml_of(const RunAnswers& answers, const std::string& file) {
  const bool is_full = answers.mode == "full";
  const SuggestedRate rate = suggested_rate(answers.use.objective, is_full);
  std::string text = fmt::format(
      "# Written by `sftrun config init`. Every key: docs/configuration.md\n"
      "#   sftrun preview --config {0}          what the model will see, and which tokens are "
      "trained on\n"
      "#   sftrun train --config {0}            trains on all devices\n"
      "model:\n"
      "  name: {1}\n"
      "  max_seq_len: {2}              # tokens per packed sequence; more need more memory\n\n"
      "tuning:\n"
      "  mode: {3}\n",
      file, yaml_word(answers.model), answers.max_seq_len, answers.mode);
  if (!is_full)
    text +=
        "  lora:\n"
        "    r: 16                       # size of the adapter: 8 to 64\n"
        "    alpha: 32                   # its scale is alpha / r\n"
        "    target_modules: all-linear\n";
  text +=
      fmt::format("\ndata:\n  train: {}\n{}", yaml_word(answers.data), fields_line(answers.use));
  const bool validates = std::stod(answers.val_split) > 0;
  if (validates)
    text += fmt::format(
        "  val_split: {}               # share of the records, held out for validation\n",
        answers.val_split);
  text += fmt::format(
      "\ntrain:\n"
      "{}{}"
      "  epochs: {}\n"
      "  batch_size: auto              # as many as fit; if all three are auto, {} per step\n"
      "  grad_accum: auto\n"
      "  learning_rate: {}         # {}\n"
      "  scheduler: cosine\n"
      "  warmup_ratio: 0.03\n"
      "{}"
      "  eval_strategy: {}\n"
      "  save_every: 10m               # a killed run loses at most 10 minutes\n"
      "  save_total_limit: 2\n"
      "{}",
      objective_line(answers.use),
      answers.teacher.empty() ? "" : fmt::format("  teacher: {}\n", yaml_word(answers.teacher)),
      answers.epochs, target_text(answers.use.info()), rate.rate, rate.why,
      is_full ? "  gradient_checkpointing: true  # a third more time, much less memory\n" : "",
      validates ? "epoch" : "\"no\"", rollout_lines(answers));
  return text;
}

}  // namespace

int init_run(const InitOptions& options) {
  const fs::path file = options.output.empty() ? fs::path("run.yaml") : options.output;
  if (leads_to_file(file) && !options.overwrite)
    throw ConfigError(fmt::format("{} exists already", file.string()),
                      "--output on the command line",
                      "choose another name with --output, or replace it with --overwrite");
  const MachineView machine = view_of_machine();
  fmt::print("{}\n", machine.text());
  const RunAnswers answers = ask_about_run(options, machine);
  write_file_atomically(file, yaml_of(answers, shell_word(file.string())),
                        options.output.empty() ? SpecialFile::kRefused : SpecialFile::kAllowed);
  fmt::print("\nWrote {}\n", file.string());
  const int code = run_config({.action = "check", .config = file});
  const std::string devices = machine.suggested_devices();
  const std::string flag = devices == "auto"  ? ""
                           : devices == "cpu" ? " --device cpu"
                                              : " --gpus " + devices;
  fmt::print("Next: sftrun preview --config {0}, then sftrun train --config {0}{1}\n",
             shell_word(file.string()), flag);
  return code;
}

}  // namespace sftrun::app
