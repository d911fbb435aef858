#include <fmt/format.h>

#include <algorithm>

#include "cli.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

/// Flags and words that a command does not take.
namespace sftrun::app {
namespace {

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden: between processes of sftrun
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

/// Names of the commands that take the flag.
void find_takers(const CLI::App& app, const std::string& flag, std::vector<std::string>& names) {
  const std::vector<std::string> flags = flags_of(app);
  if (std::find(flags.begin(), flags.end(), flag) != flags.end())
    names.push_back(fmt::format("`{}`", full_name(app)));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    find_takers(*command, flag, names);
}

/// Which commands take a flag that `command` does not take. "": none
std::string other_takers(const CLI::App& command, const std::string& flag) {
  constexpr size_t kMaxNames = 3;
  const CLI::App* root = &command;
  while (root->get_parent() != nullptr) root = root->get_parent();
  std::vector<std::string> names;
  find_takers(*root, flag, names);
  if (names.empty() || flag == "--help") return {};
  const bool is_of_runs = command.get_option_no_throw("overrides") != nullptr;
  if (is_of_runs && std::find(names.begin(), names.end(), "`sftrun train`") != names.end())
    return fmt::format("`{}` has no such flag; `sftrun train --dry-run {}` has it",
                       full_name(command), flag);
  const size_t more = names.size() - std::min(names.size(), kMaxNames);
  names.resize(names.size() - more);
  const std::string listed =
      more > 0 ? fmt::format("{} and {} more", join(names, ", "), more) : joined(names, " and ");
  return fmt::format("`{}` has no such flag; {} {} it", full_name(command), listed,
                     names.size() + more == 1 ? "has" : "have");
}

/// Advice to use a flag that `command` does not take names the command that does.
std::string advice_of_flags(const CLI::App& command, const std::string& advice) {
  constexpr std::string_view kUse = "use the flag ";
  if (!advice.starts_with(kUse)) return advice;
  const std::string rest = advice.substr(kUse.size());
  const std::string flag = rest.substr(0, rest.find_first_of(" ,;"));
  if (command.get_option_no_throw(flag) != nullptr) return advice;
  const std::string takers = other_takers(command, flag);
  return takers.empty() ? advice : takers;
}

std::string unknown_flag_fix(const CLI::App& command, const std::string& flag) {
  if (flag.find('.') != std::string::npos) {
    return fmt::format("write it without dashes: {}=VALUE",
                       flag.substr(flag.find_first_not_of('-')));
  }
  if (command.get_option_no_throw("overrides") != nullptr) {
    std::string name = flag.substr(flag.find_first_not_of('-'));
    std::replace(name.begin(), name.end(), '-', '_');
    const std::string setting = config::setting_named(name), advice = config::advice_on_key(name);
    const std::string how =
        setting.empty() ? ""
                        : fmt::format("settings are written without dashes: {}=VALUE", setting);
    const bool is_plain = advice.empty() || advice == fmt::format("use `{}`", setting);
    if (!advice.empty() && !is_plain) {
      const std::string shown = advice_of_flags(command, advice);
      return how.empty() ? shown : shown + "; " + how;
    }
    if (!how.empty()) return how;
  }
  if (const std::string takers = other_takers(command, flag); !takers.empty()) return takers;
  std::vector<std::string> flags = flags_of(command);
  std::erase(flags, "--help");  // short, so it is near to many others
  const auto longer = std::find_if(flags.begin(), flags.end(), [&](const std::string& known) {
    return flag.size() > 4 && known.starts_with(flag);
  });
  const std::string near = longer != flags.end() ? *longer : nearest(flag, flags);
  if (!near.empty()) return fmt::format("did you mean {}?", near);
  return fmt::format("`{} --help` lists every flag", full_name(command));
}

std::string without_value(const std::string& word) {
  return word.substr(0, word.find('='));
}

[[noreturn]] void refuse_flag(const CLI::App& command, const std::string& flag) {
  throw ConfigError(fmt::format("unknown flag {}", excerpt(flag)), std::string(kCommandLine),
                    unknown_flag_fix(command, flag));
}

/// Whether the command takes the word as an argument without a flag. Overrides have a form.
bool takes_argument(const CLI::App& command, const std::string& word) {
  const std::vector<const CLI::Option*> options = command.get_options();
  return std::any_of(options.begin(), options.end(), [&](const CLI::Option* option) {
    const bool is_override = option->get_name() == "overrides";
    return option->get_positional() && (!is_override || word.find('=') != std::string::npos);
  });
}

/// What to do with words that stand before the command.
std::string fix_of_words_before(const CLI::App& command, const std::vector<std::string>& words) {
  const std::string& first = words.front();
  std::string written;
  if (first.starts_with('-') || takes_argument(command, first)) {
    for (const std::string& word : words) written += " " + shell_word(word);
  } else if (names_yaml(first) && command.get_option_no_throw("--config") != nullptr) {
    written = " --config " + shell_word(first);
  }
  return written.empty()
             ? "remove it"
             : fmt::format("write it after the command: {}{}", full_name(command), written);
}

/// CLI11 leaves what stands before a command to the parent, which would ignore it.
void check_words_before(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::App* parent = command.get_parent(); parent != nullptr;
       parent = parent->get_parent()) {
    const std::vector<std::string> before = parent->remaining();
    words.insert(words.begin(), before.begin(), before.end());
  }
  if (words.empty()) return;
  const std::string first = without_value(words.front());
  if (first.starts_with('-') && command.get_option_no_throw(first) == nullptr)
    refuse_flag(command, first);
  throw ConfigError(fmt::format("`{}` stands before the command `{}`", excerpt(words.front()),
                                command.get_name()),
                    std::string(kCommandLine), fix_of_words_before(command, words));
}

}  // namespace

void check_extras(const CLI::App& command) {
  check_words_before(command);
  const std::vector<std::string> extras = command.remaining();
  if (extras.empty()) return;
  const std::string word = without_value(extras.front());
  if (word.starts_with('-')) refuse_flag(command, word);
  throw ConfigError(fmt::format("unexpected argument `{}`", excerpt(extras.front())),
                    std::string(kCommandLine),
                    fmt::format("`{} --help` shows how to call it", full_name(command)));
}

}  // namespace sftrun::app
