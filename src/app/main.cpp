#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli.h"
#include "sftrun/config/objectives.h"
#include "sftrun/core/console_writer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/verbosity.h"
#include "sftrun/launch/command_guard.h"

namespace sftrun::app {
namespace {

constexpr const char* kFooter = R"(Examples:
  sftrun train --config configs/run_lora.yaml train.batch_size=4
  sftrun generate --adapter runs/run_lora/adapter --prompt "Hello"
  sftrun config check --config configs/run_lora.yaml

`sftrun COMMAND --help` documents every flag. docs/configuration.md lists every key of the YAML.
Exit codes: 0 done, 2 usage or configuration, 3 data or model file, 4 out of memory, 5 a worker failed,
75 stopped by SIGTERM or SIGUSR1, 130 by Ctrl-C (both write a checkpoint once training has started).)";

std::vector<Command> add_commands(CLI::App& sftrun) {
  std::vector<Command> commands;
#define SFTRUN_ROW(name) commands.push_back(add_##name(sftrun));
  SFTRUN_SUBCOMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW
  for (const Command& command : commands) {
    read_paths(*command.parser);
    for (const Command& action : command.actions) read_paths(*action.parser);
  }
  return commands;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// The command that a word of another tool means, or the command of `config` that it is: "merge" of
/// "export". "": none
std::string command_meant(const CLI::App& app, const std::vector<Command>& commands,
                          std::string word) {
  std::replace(word.begin(), word.end(), '_', '-');
  if (app.get_parent() != nullptr) return word == "validate" ? "check" : "";
  if (word == "version") return "--version";
  if (word == "validate") return "config check";
  if (config::find_objective(word) != nullptr) return "train";
  for (const Command& command : commands) {
    if (std::ranges::find(command.other_words, word) != command.other_words.end())
      return command.parser->get_name();
    for (const Command& action : command.actions)
      if (action.parser->get_name() == word) return command.parser->get_name() + " " + word;
  }
  return {};
}

/// Reports a word that is not a command.
[[noreturn]] void unknown_command(const CLI::App& app, const std::vector<Command>& commands,
                                  const std::string& prefix) {
  const std::string word = app.remaining().front();
  if (word.starts_with('-')) {
    throw ConfigError(fmt::format("unknown flag {}", excerpt(word)), "the command line",
                      fmt::format("flags follow the command: `{} --help`", prefix));
  }
  const std::string meant = command_meant(app, commands, word);
  const std::string near = meant.empty() ? nearest(word, subcommands_of(app)) : meant;
  throw ConfigError(fmt::format("unknown command `{} {}`", prefix, excerpt(word)),
                    "the command line",
                    near.empty() ? fmt::format("`{} --help` lists the commands", prefix)
                                 : fmt::format("did you mean `{} {}`?", prefix, near));
}

/// The shell may stand in a directory that another process has removed. Each relative path would
/// then seem to be missing.
void require_working_directory() {
  std::error_code code;
  static_cast<void>(std::filesystem::current_path(code));
  if (code != std::errc::no_such_file_or_directory) return;
  const char* entered = std::getenv("PWD");
  throw ConfigError("the current directory no longer exists", entered == nullptr ? "" : entered,
                    "cd to another directory; if it was made again, enter it again: cd \"$PWD\"");
}

/// Reports the word that was typed in place of a command; else there is nothing to report.
void require_known_command(const CLI::App& sftrun, const std::vector<Command>& commands,
                           bool asks_for_help) {
  const auto chosen = sftrun.get_subcommands();
  const CLI::App& innermost = chosen.empty() ? sftrun : *chosen.front();
  const bool takes_command =
      !innermost.get_subcommands([](const CLI::App*) { return true; }).empty() &&
      innermost.get_subcommands().empty();
  if (!takes_command || innermost.remaining().empty()) return;
  if (asks_for_help && innermost.remaining().front().starts_with('-')) return;
  unknown_command(innermost, commands,
                  chosen.empty() ? "sftrun" : "sftrun " + innermost.get_name());
}

/// The flag after which its value is absent: the words end, or another flag follows. null: there is none.
const CLI::Option* flag_without_value(const CLI::App& sftrun,
                                      const std::vector<std::string>& words) {
  const CLI::App* command = &sftrun;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto commands =
        command->get_subcommands([&](const CLI::App* one) { return one->get_name() == words[i]; });
    if (!commands.empty()) command = commands.front();
    const CLI::Option* flag = command->get_option_no_throw(words[i]);
    if (!words[i].starts_with('-') || flag == nullptr || flag->get_items_expected_min() == 0)
      continue;
    if (i + 1 == words.size() ||
        (words[i + 1].starts_with('-') && command->get_option_no_throw(words[i + 1]) != nullptr))
      return flag;
  }
  return nullptr;
}

/// @param words without the program's name
[[noreturn]] void refuse_words(const CLI::App& sftrun, const std::vector<std::string>& words,
                               const CLI::ParseError& error) {
  if (const CLI::Option* flag = flag_without_value(sftrun, words)) {
    std::string takes = flag->get_type_name();
    takes.erase(0, takes.find(':') + 1);  // "INT:N" of a type with a check
    throw ConfigError(fmt::format("{} has no value", flag->get_name()), "the command line",
                      fmt::format("write {} {}", flag->get_name(), takes));
  }
  throw ConfigError(excerpt(error.what()), "the command line",
                    "add --help after the command to see its flags");
}

/// The command that was typed, or its action; null: none
const Command* parsed_among(const std::vector<Command>& commands) {
  for (const Command& command : commands)
    if (command.parser->parsed())
      return command.actions.empty() ? &command : parsed_among(command.actions);
  return nullptr;
}

int dispatch(CLI::App& sftrun, const std::vector<Command>& commands) {
  if (const Command* command = parsed_among(commands)) {
    check_extras(*command->parser);
    if (!command->works_anywhere) require_working_directory();
    warn_of_idle_flags(*command);
    return command->run();
  }
  // No command to run: nothing was typed, or an unknown word.
  require_known_command(sftrun, commands, /*asks_for_help=*/false);
  fmt::print("{}", sftrun.help());
  return static_cast<int>(ExitCode::kDone);
}

void check_verbosity() {
  const char* word = std::getenv(log::kVerbosityVariable);
  if (word == nullptr || log::parse_verbosity(word)) return;
  throw ConfigError(
      fmt::format("SFTRUN_LOG={} is neither quiet, normal nor verbose", excerpt(word)),
      "environment variable SFTRUN_LOG", "set one of these words, or unset it");
}

int run(int argc, char** argv) {
  CLI::App sftrun("Fine-tunes language models. Reads a YAML file, writes a PEFT adapter.",
                  "sftrun");
  sftrun.formatter(std::make_shared<HelpFormatter>());  // commands inherit it
  sftrun.allow_extras();
  sftrun.require_subcommand(0, 1);
  sftrun.footer(kFooter);
  bool version = false;
  sftrun.add_flag("-v,--version", version, "Print versions of sftrun and its libraries");
  const std::vector<Command> commands = add_commands(sftrun);
  std::vector<std::string> words = with_hyphens(argc, argv);
  if (!words.empty() && words.front() == "help") {  // as in `sftrun help train`
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  try {
    sftrun.parse(std::vector(words.rbegin(), words.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    require_known_command(sftrun, commands, /*asks_for_help=*/true);
    fmt::print("{}", sftrun.help());
    return static_cast<int>(ExitCode::kDone);
  } catch (const CLI::ParseError& error) {
    refuse_words(sftrun, words, error);
  }
  check_verbosity();
  if (version) {
    fmt::print("{}", version_text());
    return static_cast<int>(ExitCode::kDone);
  }
  return dispatch(sftrun, commands);
}

int fail(ExitCode code, const std::string& text) {
  ConsoleWriter::of_process().write(STDERR_FILENO, text + "\n");
  return static_cast<int>(code);
}

bool is_loaded(const char* library) {
  return dlopen(library, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

/// Ends the process. On a CPU without the destructors of LibTorch's static objects, which take a tenth of a
/// second; on a GPU with them, because profilers write what they have found in those. Sanitizers look for leaks there.
int leave(int code) {
  ConsoleWriter::of_process().flush();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (is_loaded("libtorch_cpu.so") && !is_loaded("libtorch_cuda.so")) {
    std::fflush(nullptr);
    _exit(code);
  }
#endif
  return code;
}

/// What the process was started with, and what a run needs.
void set_up_process() {
  open_standard_streams();
  ::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error with a message, not the end
  ::signal(SIGCHLD, SIG_DFL);  // if it was ignored, how workers end would be unknown
}

int run_and_write(int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    if (code == 0) require_standard_output();
    return code;
  } catch (const std::system_error& error) {  // fmt::print
    require_standard_output(error.code().value());
    throw;
  }
}

int guarded_run(int argc, char** argv) {
  try {
    return run_and_write(argc, argv);
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kOutOfMemory, "error: out of memory");
  } catch (const nlohmann::json::exception& error) {
    return fail(ExitCode::kWorkerFailed, Error(ExitCode::kWorkerFailed, json_reason(error)).what());
  } catch (const std::exception& error) {
    return fail(ExitCode::kWorkerFailed, Error(ExitCode::kWorkerFailed, error.what()).what());
  }
}

}  // namespace
}  // namespace sftrun::app

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == sftrun::launch::kCommandGuard)
    sftrun::launch::guard_command(argv[2]);
  sftrun::app::set_up_process();
  sftrun::end_on_bad_alloc();
  return sftrun::app::leave(sftrun::app::guarded_run(argc, argv));
}
