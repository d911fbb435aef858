#include "cli_idle_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/worker_env.h"

namespace sftrun::app {
namespace idle {

bool has(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

std::string value_of(const CLI::App& command, const std::string& flag) {
  return has(command, flag) ? command.get_option(flag)->results().back() : "";
}

IdleReason always(const std::string& why) {
  return [why](const CLI::App&) { return why; };
}
IdleReason without(const std::string& flag, const std::string& why) {
  return [=](const CLI::App& command) {
    return has(command, flag) ? "" : fmt::format(" without {}{}", flag, why);
  };
}
IdleReason with(const std::string& flag, const std::string& why) {
  return [=](const CLI::App& command) {
    return has(command, flag) ? fmt::format(" with {}{}", flag, why) : "";
  };
}
IdleReason with_value(const std::string& flag, const std::string& value) {
  return [=](const CLI::App& command) {
    return value_of(command, flag) == value ? fmt::format(" with {} {}", flag, value) : "";
  };
}

namespace {

std::string why_greedy(const CLI::App& command) {
  const std::string text = value_of(command, "--temperature");
  double temperature = 0;
  if (!text.empty() && CLI::detail::lexical_cast(text, temperature) && temperature > 0) return {};
  return " without --temperature: the most likely token is taken each time; add, for example, "
         "--temperature 0.7";
}

std::string why_started_by_other(const CLI::App&) {
  const launch::Environment env = launch::current_environment();
  return env.contains("RANK") && env.contains("WORLD_SIZE")
             ? ": RANK and WORLD_SIZE say that another launcher has started this process"
             : "";
}

}  // namespace

IdleRule overwrite_of_stream() {
  return {{"--overwrite"}, with_value("--output", "-")};
}
IdleRule sampling_of_greedy() {
  return {{"--top-p", "--top-k", "--min-p", "--seed"}, why_greedy};
}
IdleRule as_stored_of_model() {
  return {{"--as-stored"},
          without("--adapter", ": a model alone is loaded in the precision of its files")};
}
IdleRule launch_flags_of_rank() {
  return {{"--nproc-per-node", "--gpus", "--nnodes", "--node-rank", "--master-addr",
           "--master-port", "--max-restarts"},
          why_started_by_other};
}

}  // namespace idle

namespace {

/// The keys of `key=value` on the command line.
std::vector<std::string> keys_of(const CLI::App& command) {
  std::vector<std::string> keys;
  if (!idle::has(command, "overrides")) return keys;
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
  const auto is_excepted = [&](const std::string& key) {
    return std::find(rule.except.begin(), rule.except.end(), key) != rule.except.end();
  };
  for (const std::string& flag : rule.flags) {
    if (flag.starts_with('-') && idle::has(command, flag)) add(flag);
    for (const std::string& key : keys_of(command))
      if (key == flag || (flag.ends_with('.') && key.starts_with(flag) && !is_excepted(key)))
        add(key);
  }
  return given;
}

}  // namespace

std::vector<std::string> idle_flag_warnings(const Command& command) {
  std::vector<std::string> warnings;
  for (const IdleRule& rule : command.idle_rules) {
    const std::vector<std::string> given = given_of(rule, *command.parser);
    const std::string reason = given.empty() ? "" : rule.reason(*command.parser);
    if (reason.empty()) continue;
    warnings.push_back(fmt::format("{} {} no effect{}", join(given, ", "),
                                   given.size() == 1 ? "has" : "have", reason));
  }
  return warnings;
}

void warn_of_idle_flags(const Command& command) {
  const std::vector<std::string> warnings = idle_flag_warnings(command);
  if (warnings.empty() || !launch::speaks_for_run(launch::current_environment())) return;
  for (const std::string& warning : warnings) log::warn("{}", warning);
}

}  // namespace sftrun::app
