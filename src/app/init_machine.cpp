#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>

#include "cli.h"
#include "config_init.h"
#include "sftrun/config/machine_file.h"
#include "sftrun/config/settings_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> whole(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The first of the GPUs that is too old, in words; empty: none is.
/// @param used numbers of the GPUs that a run would use
std::string old_gpu(const std::vector<launch::GpuInfo>& gpus, const std::vector<int64_t>& used) {
  for (const int64_t number : used) {
    const launch::GpuInfo& gpu = gpus.at(static_cast<size_t>(number));
    if (gpu.is_too_old())
      return fmt::format("GPU {} ({}, sm_{}{}) is too old: sm_80 (Ampere) or newer is required",
                         number, gpu.name, gpu.compute_major, gpu.compute_minor);
  }
  return {};
}

/// Devices that exist and that a run takes. Without GPUs a number is one of processes on the CPU.
AnswerCheck devices_check(const MachineView& machine) {
  const size_t num_gpus = machine.can_use_gpus ? machine.gpus.size() : 0;
  return [num_gpus, gpus = machine.gpus](std::string& text) -> std::string {
    std::erase(text, ' ');
    if (!config::is_device_list(text))
      return fmt::format("`{}` is not auto, cpu, a number or a list like 0,2,3", text);
    if (text == "cpu" || num_gpus == 0) return {};
    const bool is_list = text.find(',') != std::string::npos;
    std::vector<int64_t> used;
    if (!is_list) {
      const int64_t asked = text == "auto" ? INT64_MAX : whole(text).value_or(0);
      used.resize(std::min(num_gpus, static_cast<size_t>(asked)));
      std::iota(used.begin(), used.end(), 0);
    }
    if (text == "auto") return old_gpu(gpus, used);
    for (const std::string& item : split(text, ',')) {
      if (item.empty()) continue;  // "1," is a list of one
      const int64_t number = whole(item).value_or(INT64_MAX);
      const bool exists = is_list ? number < static_cast<int64_t>(num_gpus)
                                  : number >= 1 && number <= static_cast<int64_t>(num_gpus);
      if (!exists) return fmt::format("`{}`: this machine has {}", text, counted(num_gpus, "GPU"));
      if (is_list) used.push_back(number);
    }
    return old_gpu(gpus, used);
  };
}

std::vector<std::string> strategy_words() {
  std::vector<std::string> words;
  for (const config::StrategyRow& row : config::kStrategies)
    if (!row.one_process) words.emplace_back(row.name);
  return words;
}

std::string check_master(std::string& text) {
  const size_t colon = text.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : whole(text.substr(colon + 1));
  if (colon == 0 || colon == std::string::npos || !port || *port < 1 || *port > 65535)
    return fmt::format("`{}` is not host:port, as node-a:29500", text);
  return {};
}

/// The answers of an earlier file are the defaults of the next.
class EarlierAnswers {
 public:
  explicit EarlierAnswers(const fs::path& file) {
    try {
      if (leads_to_file(file)) settings_ = config::read_settings_text(file);
    } catch (const Error&) {  // not readable: the new file replaces it
    }
  }
  std::string get(const char* key, std::string otherwise) const {
    for (const auto& [name, value] : settings_)
      if (name == key && !value.empty() && value.front() != '[') return value;
    return otherwise;
  }

 private:
  config::SettingsText settings_;
};

/// Flags that answer questions about several machines, of which there is one.
void warn_of_one_machine(const InitOptions& options) {
  if (options.nodes) return;  // a script for any number of machines gives all three
  for (const auto& [flag, answer] :
       {std::pair("--node-rank", &options.node_rank), {"--master", &options.master}}) {
    if (*answer) log::warn("{} has no effect with one machine; add their number: --nodes 2", flag);
  }
}

config::MachineAnswers ask_about_machine(const InitOptions& options, const MachineView& machine,
                                         const EarlierAnswers& earlier) {
  const Interview interview(options.yes);
  const auto ask = [&](const char* flag, const char* text, const char* why,
                       std::optional<std::string> initial, AnswerCheck check,
                       const std::optional<std::string>& given) {
    return interview.ask({flag, text, why, std::move(initial), std::move(check)}, given);
  };
  config::MachineAnswers answers;
  answers.devices = ask("--devices", "Devices", "auto: all GPUs, or the CPU where there is none",
                        earlier.get("devices", machine.suggested_devices()), devices_check(machine),
                        options.devices);
  answers.dtype =
      ask("--dtype", "Compute dtype", "auto: bf16 if the hardware supports it, else fp32",
          earlier.get("dtype", "auto"), compute_dtype(), options.dtype);
  answers.strategy =
      ask("--strategy", "Strategy for several devices",
          "auto: ddp, or a sharded strategy if the model does not fit",
          earlier.get("strategy", "auto"), one_of(strategy_words()), options.strategy);
  const std::string nodes =
      ask("--nodes", "Machines of each run", "1, unless runs use several machines",
          earlier.get("nodes", "1"), at_least(1), options.nodes);
  answers.nodes = *whole(nodes);
  if (answers.nodes == 1) {
    warn_of_one_machine(options);
    return answers;
  }
  const std::string rank = ask(
      "--node-rank", "Number of this machine", "the other machines connect to machine 0",
      earlier.get("node_rank", "0"),
      [&](std::string& text) {
        const auto number = whole(text);
        return number && *number >= 0 && *number < answers.nodes
                   ? ""
                   : fmt::format("`{}` is not a number from 0 to {}", text, answers.nodes - 1);
      },
      options.node_rank);
  answers.node_rank = *whole(rank);
  const std::string own = fmt::format("{}:29500", observe::host_name());
  const std::string before = earlier.get("master", answers.node_rank == 0 ? own : "");
  answers.master = ask(
      "--master", "Address of machine 0", "host:port that every machine reaches, as node-a:29500",
      before.empty() ? std::nullopt : std::optional(before), check_master, options.master);
  return answers;
}

fs::path machine_file_of(const InitOptions& options) {
  const fs::path path =
      options.output.empty() ? config::machine_file_path() : fs::path(options.output);
  if (path.empty())
    throw ConfigError("the machine file has no default path: HOME is not set", "the environment",
                      "name a file with --output, and set SFTRUN_MACHINE_CONFIG to it for runs");
  return path;
}

/// All machines of a run need the same dtype and strategy; devices may differ.
std::string command_for_machine(const config::MachineAnswers& answers, int64_t rank) {
  std::string text = fmt::format(
      "On machine {0}: sftrun config init --machine --nodes {1} --node-rank {0} --master {2}", rank,
      answers.nodes, shell_word(answers.master));
  if (answers.dtype != "auto") text += " --dtype " + answers.dtype;
  if (answers.strategy != "auto") text += " --strategy " + answers.strategy;
  return text;
}

}  // namespace

int init_machine(const InitOptions& options) {
  const fs::path file = machine_file_of(options);
  const MachineView machine = view_of_machine();
  fmt::print("{}\n", machine.text());
  const config::MachineAnswers answers = ask_about_machine(options, machine, EarlierAnswers(file));
  std::error_code ignored;
  if (file.has_parent_path()) make_directories(file.parent_path());
  if (leads_to_file(file)) {
    const fs::path old = file.string() + ".old";
    fs::rename(file, old, ignored);
    fmt::print("\nThe earlier file is now {}\n", old.string());
  }
  write_file_atomically(file, config::to_yaml(answers));
  const bool is_found = options.output.empty() || file == config::machine_file_path();
  fmt::print("\nWrote {}.{}\n", file.string(), is_found ? " Runs on this machine read it." : "");
  if (!is_found)
    fmt::print("Runs read it with SFTRUN_MACHINE_CONFIG={}\n",
               shell_word(absolute_path(file).string()));
  for (int64_t rank = 0; rank < answers.nodes && answers.nodes > 1; ++rank)
    if (rank != answers.node_rank) fmt::print("{}\n", command_for_machine(answers, rank));
  fmt::print("Next: sftrun doctor\n");
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
