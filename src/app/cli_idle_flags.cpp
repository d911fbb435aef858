#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cli.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"
#include "sftrun/launch/worker_env.h"

/// Flags, and settings on the command line, that are valid and change nothing. A contradiction is
/// an error of its command. Settings that change nothing in a run are in config/idle_settings.h.
namespace sftrun::app {
namespace {

/// The end of a sentence that begins "--FLAG has no effect"; empty: it has one.
using Reason = std::function<std::string(const CLI::App&)>;

/// Flags of commands that share the reason for which they change nothing.
struct IdleRule {
  std::vector<std::string> flags;     ///< or settings: a key, or a section ("data.")
  std::vector<std::string> commands;  ///< empty: all that have the flags
  Reason reason;
};

bool has(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

/// Of a flag that is given several times the last; "": it is not given.
std::string value_of(const CLI::App& command, const std::string& flag) {
  return has(command, flag) ? command.get_option(flag)->results().back() : "";
}

Reason always(const std::string& why) {
  return [why](const CLI::App&) { return why; };
}
Reason without(const std::string& flag, const std::string& why = {}) {
  return [=](const CLI::App& command) {
    return has(command, flag) ? "" : fmt::format(" without {}{}", flag, why);
  };
}
Reason with(const std::string& flag, const std::string& why = {}) {
  return [=](const CLI::App& command) {
    return has(command, flag) ? fmt::format(" with {}{}", flag, why) : "";
  };
}
Reason with_value(const std::string& flag, const std::string& value) {
  return [=](const CLI::App& command) {
    return value_of(command, flag) == value ? fmt::format(" with {} {}", flag, value) : "";
  };
}

std::string why_greedy(const CLI::App& command) {
  const std::string text = value_of(command, "--temperature");
  double temperature = 0;
  if (!text.empty() && CLI::detail::lexical_cast(text, temperature) && temperature > 0) return {};
  return " without --temperature: the most likely token is taken each time; add, for example, "
         "--temperature 0.7";
}

std::string why_base_alone(const CLI::App& command) {
  return is_none_word(value_of(command, "--adapter"))
             ? " with --adapter none, which is the base model alone"
             : "";
}

std::string why_nothing_resumed(const CLI::App& command) {
  if (has(command, "--overwrite")) return " with --overwrite, which resumes nothing";
  return value_of(command, "--resume") == "never" ? " with --resume never" : "";
}

std::string why_started_by_other(const CLI::App&) {
  const launch::Environment env = launch::current_environment();
  return env.contains("RANK") && env.contains("WORLD_SIZE")
             ? ": RANK and WORLD_SIZE say that another launcher has started this process"
             : "";
}

const std::vector<IdleRule>& idle_rules() {
  static const std::vector<IdleRule> rules = {
      {{"--overwrite"}, {"eval"}, without("--predictions")},
      {{"--overwrite"}, {"generate", "import"}, without("--output")},
      {{"--overwrite"}, {"generate", "score", "tokenize"}, with_value("--output", "-")},
      {{"--top-p", "--top-k", "--min-p", "--seed"}, {}, why_greedy},
      {{"--batch-size"}, {"generate"}, with("--prompt", ", which is one prompt")},
      {{"--json"}, {"generate"}, with("--output", ", which is JSON in any case")},
      {{"--as-stored"},
       {"generate", "score", "serve", "chat"},
       without("--adapter", ": a model alone is loaded in the precision of its files")},
      {{"--base", "--as-stored"}, {"eval"}, why_base_alone},
      {{"--data", "--device"}, {"merge"}, with_value("--sample", "0")},
      {{"--allow-changed-data", "--allow-changed-length", "--allow-backend-change"},
       {"train"},
       why_nothing_resumed},
      {{"--nproc-per-node", "--gpus", "--nnodes", "--node-rank", "--master-addr", "--master-port",
        "--max-restarts"},
       {"train", "generate", "eval", "doctor"},
       why_started_by_other},
      {{"data.shuffle", "data.shuffle_buffer", "data.bin_tokens", "data.seed", "data.cache_dir"},
       {"preview"},
       always(" in `sftrun preview`, which shows the first records")},
      {{"data.shuffle", "data.shuffle_buffer"},
       {"eval"},
       always(" in `sftrun eval`, which reads validation data in their order")},
      {{"train.batch_size", "train.grad_accum", "train.global_batch_size"},
       {"eval"},
       always(" in `sftrun eval`; train.eval_batch_size is the size of its batches")},
      {{"parallel.strategy", "parallel.device_map", "parallel.pp", "parallel.tp",
        "parallel.dp_shard", "parallel.offload.", "parallel.fetch"},
       {"eval"},
       always(" in `sftrun eval`: each process has the whole model")},
      {{"data.", "output.", "callbacks."},
       {"bench"},
       always(" in `sftrun bench`, which trains on synthetic tokens and writes nothing")},
      {{"train.batch_size", "train.global_batch_size", "train.grad_accum"},
       {"bench"},
       always(" in `sftrun bench`; use --batch-size")},
      {{"train.epochs", "train.max_steps"}, {"bench"}, always(" in `sftrun bench`; use --steps")},
      {{"model.max_seq_len"}, {"bench"}, always(" in `sftrun bench`; use --seq-len")},
      {{"model.name"}, {"bench"}, always(" in `sftrun bench`; use --model")}};
  return rules;
}

/// The keys of `key=value` on the command line.
std::vector<std::string> keys_of(const CLI::App& command) {
  std::vector<std::string> keys;
  if (!has(command, "overrides")) return keys;
  for (const std::string& word : command.get_option("overrides")->results())
    keys.push_back(word.substr(0, word.find('=')));
  return keys;
}

/// Those of the rule's flags and settings that are given, as they are written.
std::vector<std::string> given_of(const IdleRule& rule, const CLI::App& command) {
  std::vector<std::string> given;
  const auto add = [&](const std::string& name) {
    if (std::find(given.begin(), given.end(), name) == given.end()) given.push_back(name);
  };
  for (const std::string& flag : rule.flags) {
    if (flag.starts_with('-') && has(command, flag)) add(flag);
    for (const std::string& key : keys_of(command))
      if (key == flag || (flag.ends_with('.') && key.starts_with(flag))) add(key);
  }
  return given;
}

}  // namespace

std::vector<std::string> idle_flag_warnings(const CLI::App& command) {
  std::vector<std::string> warnings;
  for (const IdleRule& rule : idle_rules()) {
    const auto& commands = rule.commands;
    if (!commands.empty() &&
        std::find(commands.begin(), commands.end(), command.get_name()) == commands.end())
      continue;
    const std::vector<std::string> given = given_of(rule, command);
    const std::string reason = given.empty() ? "" : rule.reason(command);
    if (reason.empty()) continue;
    warnings.push_back(fmt::format("{} {} no effect{}", join(given, ", "),
                                   given.size() == 1 ? "has" : "have", reason));
  }
  return warnings;
}

void warn_of_idle_flags(const CLI::App& command) {
  const std::vector<std::string> warnings = idle_flag_warnings(command);
  if (warnings.empty() || !launch::speaks_for_run(launch::current_environment())) return;
  for (const std::string& warning : warnings) log::warn("{}", warning);
}

}  // namespace sftrun::app
