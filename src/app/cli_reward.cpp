#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "reward.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

struct RewardFlags {
  std::vector<std::string> rewards;  ///< names or maps in YAML
  std::string file;
  RecordFlags records{.replaces_jsonl =
                          true};  // the same answers and functions give the same rewards
  RewardOptions options;
};

/// A flag has no lines.
void remove_marks(config::Value& value) {
  value.mark = {};
  for (config::MapKey& key : value.keys) key.mark = {};
  for (config::Value& item : value.items) remove_marks(item);
}

config::RewardSpecs specs_of(const RewardFlags& flags) {
  if (!flags.file.empty()) return config::read_rewards(flags.file);
  config::Value list{.kind = config::Value::Kind::kList};
  for (const std::string& text : flags.rewards) {
    try {
      config::Value value = config::parse_yaml_value(text);
      remove_marks(value);
      list.items.push_back(std::move(value));
    } catch (const ConfigError& error) {
      throw ConfigError(error.message(), "--reward on the command line", error.fix());
    }
  }
  config::Problems problems;
  config::RewardSpecs specs = config::parse_rewards(list, "--reward on the command line", problems);
  config::throw_if_any(problems);
  return specs;
}

std::string names_of_rewards() {
  std::vector<std::string> names;
  for (const config::RewardInfo& info : config::kRewards) names.emplace_back(info.name);
  return join(names, ", ");
}

}  // namespace

Command add_reward(CLI::App& sftrun) {
  auto flags = std::make_shared<RewardFlags>();
  CLI::App* command = add_command(
      sftrun, "reward", "Judge answers: adds \"reward\" and \"rewards\" to each record",
      "sftrun reward --input answers.jsonl --output rewarded.jsonl --reward number\n"
      "  sftrun reward --input answers.jsonl --output rewarded.jsonl --reward number --reward "
      "'{name: length, maximum: 512, unit: tokens, weight: 0.2}'\n"
      "  sftrun reward --input answers.jsonl --output rewarded.jsonl --reward-config rewards.yaml");
  command
      ->add_option("--reward", flags->rewards,
                   fmt::format("Function, may be given several times: a name, or a map with its "
                               "settings (docs/rewards.md). Names: {}",
                               names_of_rewards()))
      ->allow_extra_args(false)
      ->type_name("REWARD");
  command
      ->add_option("--reward-config", flags->file,
                   "YAML or JSON file with a list of functions, in place of --reward")
      ->type_name("FILE");
  add_record_flags(*command, flags->records, "answers, as `sftrun generate` writes them",
                   "the records with their rewards");
  command->add_option("--answer", flags->options.answer_key,
                      "Key of the record that has the answer [generated, else completion]");
  command
      ->add_option("--batch-size", flags->options.batch_size,
                   "Answers that programs and servers get together")
      ->check(at_least(1, kMaxRows))
      ->capture_default_str();
  command->add_flag("--json", flags->options.json, "Print a summary as one JSON object");
  return {command,
          [flags, command] {
            require(!flags->records.input.empty(), *command, "--input");
            require(!flags->records.output.empty(), *command, "--output");
            require_at_most_one(*command, {"--reward", "--reward-config"});
            require(!flags->rewards.empty() || !flags->file.empty(), *command,
                    "--reward or --reward-config");
            if (!flags->file.empty()) require_exists("--reward-config", flags->file);
            check_record_flags(flags->records);
            if (flags->options.json && flags->records.output == "-")
              throw ConfigError("--json and --output - both write to standard output",
                                "--output on the command line", "write the records to a file");
            flags->options.specs = specs_of(*flags);
            flags->options.input = input_of(flags->records);
            flags->options.output = flags->records.output;
            flags->options.overwrite = flags->records.overwrite;
            return run_reward(flags->options);
          },
          /*other_words=*/{"judge", "rewards", "grade"},
          /*idle_rules=*/{idle::overwrite_of_stream()}};
}

}  // namespace sftrun::app
