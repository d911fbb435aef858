#include <charconv>
#include <cstdio>
#include <fstream>

#include "cli.h"
#include "commands.h"
#include "engine_location.h"
#include "interview.h"
#include "run_check.h"
#include "sftrun/config/machine_file.h"
#include "sftrun/config/settings_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/observe/system.h"
#include "sftrun/plan/micro_batch.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;
using AnswerCheck = std::function<std::string(std::string&)>;

AnswerCheck as_check(CLI::Validator validator) {
  return [validator = std::move(validator)](std::string& text) { return validator(text); };
}

std::optional<int64_t> whole(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// ---- What the machine has

struct MachineView {
  launch::GpuReport gpus;
  bool can_use_gpus = false;
  observe::MemoryInfo memory;
  double cpus = 1;

  bool trains_on_gpu() const { return can_use_gpus && !gpus.gpus.empty(); }
  /// Of the smallest device.
  uint64_t device_bytes() const {
    if (!trains_on_gpu()) return memory.total_bytes;
    uint64_t smallest = UINT64_MAX;
    for (const launch::GpuInfo& gpu : gpus.gpus)
      smallest = std::min(smallest, gpu.memory_total_bytes.value_or(UINT64_MAX));
    return smallest;
  }
  std::string text() const {
    std::string devices = "no GPU";
    if (!gpus.gpus.empty())
      devices = fmt::format("{} ({})", counted(gpus.gpus.size(), "GPU"), gpus.gpus.front().name);
    if (!gpus.gpus.empty() && !can_use_gpus) devices += ", which this build cannot use";
    return fmt::format("This machine: {}, {:g} processors, {} of memory", devices, cpus,
                       format_bytes(memory.total_bytes));
  }
};

MachineView view_of_machine() {
  return {.gpus = launch::query_gpus(),
          .can_use_gpus = has_cuda_kernels(),
          .memory = observe::memory_info(),
          .cpus = observe::available_cpus()};
}

// ---- The machine file

/// Devices that exist.   @param num_gpus 0: a number is one of processes on the CPU
AnswerCheck devices_check(size_t num_gpus) {
  return [num_gpus](std::string& text) -> std::string {
    std::erase(text, ' ');
    if (!config::is_device_list(text))
      return fmt::format("`{}` is not auto, cpu, a number or a list like 0,2,3", text);
    if (text == "auto" || text == "cpu" || num_gpus == 0) return {};
    const bool is_list = text.find(',') != std::string::npos;
    for (const std::string& item : split(text, ',')) {
      const int64_t number = whole(item).value_or(INT64_MAX);
      const bool exists = is_list ? number < static_cast<int64_t>(num_gpus)
                                  : number >= 1 && number <= static_cast<int64_t>(num_gpus);
      if (!exists) return fmt::format("`{}`: this machine has {}", text, counted(num_gpus, "GPU"));
    }
    return {};
  };
}

std::vector<std::string> strategy_words() {
  using enum config::Strategy;
  std::vector<std::string> words;
  for (const config::Strategy strategy :
       {kAuto, kDdp, kZero1, kZero2, kZero3, kFsdp, kHybrid, kPipeline, kTensor})
    words.emplace_back(config::strategy_name(strategy));
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
    std::error_code ignored;
    try {
      if (fs::exists(file, ignored)) settings_ = config::read_settings_text(file);
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

config::MachineAnswers ask_about_machine(const InitOptions& options, const MachineView& machine,
                                         const EarlierAnswers& earlier) {
  const Interview interview(options.yes);
  const auto ask = [&](const char* flag, const char* text, const char* why,
                       std::optional<std::string> initial, AnswerCheck check,
                       const std::optional<std::string>& given) {
    return interview.ask({flag, text, why, std::move(initial), std::move(check)}, given);
  };
  config::MachineAnswers answers;
  answers.devices =
      ask("--devices", "Devices", "auto: all GPUs, or the CPU where there is none",
          earlier.get("devices", "auto"),
          devices_check(machine.can_use_gpus ? machine.gpus.gpus.size() : 0), options.devices);
  answers.dtype =
      ask("--dtype", "Compute dtype", "auto: bf16 where the hardware multiplies it fast, else fp32",
          earlier.get("dtype", "auto"), as_check(compute_dtype()), options.dtype);
  answers.strategy =
      ask("--strategy", "Strategy of several devices",
          "auto: ddp, or a sharded strategy if the model does not fit",
          earlier.get("strategy", "auto"), as_check(one_of(strategy_words())), options.strategy);
  const std::string nodes =
      ask("--nodes", "Machines of each run", "1, unless runs go over several machines",
          earlier.get("nodes", "1"), as_check(at_least(1)), options.nodes);
  answers.nodes = *whole(nodes);
  if (answers.nodes == 1) return answers;
  const std::string rank = ask(
      "--node-rank", "Number of this machine", "machine 0 is where the others connect to",
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
    throw ConfigError("there is no place for the machine file: HOME is not set", "the environment",
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

int init_machine(const InitOptions& options) {
  const fs::path file = machine_file_of(options);
  const MachineView machine = view_of_machine();
  fmt::print("{}\n", machine.text());
  const config::MachineAnswers answers = ask_about_machine(options, machine, EarlierAnswers(file));
  std::error_code ignored;
  if (file.has_parent_path()) make_directories(file.parent_path());
  if (fs::exists(file, ignored)) {
    const fs::path old = file.string() + ".old";
    fs::rename(file, old, ignored);
    fmt::print("\nThe earlier file is now {}\n", old.string());
  }
  write_file_atomically(file, config::to_yaml(answers));
  fmt::print("\nWrote {}. Runs on this machine read it.\n", file.string());
  if (!options.output.empty() && file != config::machine_file_path())
    fmt::print("Runs find it with SFTRUN_MACHINE_CONFIG={}\n",
               shell_word(fs::absolute(file).string()));
  for (int64_t rank = 0; rank < answers.nodes && answers.nodes > 1; ++rank)
    if (rank != answers.node_rank) fmt::print("{}\n", command_for_machine(answers, rank));
  fmt::print("Next: sftrun doctor\n");
  return static_cast<int>(ExitCode::kDone);
}

// ---- A run's YAML

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

std::string check_model(std::string& text) {
  std::error_code ignored;
  if (fs::exists(text, ignored) || hub::parse_model_name(text)) return {};
  return fmt::format("`{}` is neither a file or folder here nor a name on the hub (owner/name)",
                     text);
}

std::string check_data(std::string& text) {
  if (exists_or_matches(text) || hub::parse_dataset_name(text)) return {};
  return fmt::format("`{}` is neither a file, folder or pattern here nor a data set on the hub",
                     text);
}

std::optional<std::string> first_that_exists(std::initializer_list<const char*> paths) {
  std::error_code ignored;
  for (const char* path : paths)
    if (fs::exists(path, ignored)) return path;
  return std::nullopt;
}

/// What is known of a model that is on this machine; nullopt: it is on the hub, or cannot be read.
std::optional<ModelHeaders> headers_of(const std::string& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored)) return std::nullopt;
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

/// Too few records leave nothing to validate on.
std::string suggested_val_split(const std::string& data) {
  constexpr int kLeastRecords = 100;
  std::error_code ignored;
  if (!data.ends_with(".jsonl") || !fs::is_regular_file(data, ignored)) return "0.05";
  std::ifstream file(data);
  int lines = 0;
  for (std::string line; lines < kLeastRecords && std::getline(file, line);) ++lines;
  return lines < kLeastRecords ? "0" : "0.05";
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

struct RunAnswers {
  std::string model, data, mode, max_seq_len, epochs, val_split;
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
  answers.val_split = interview.ask({"--val-split", "Share of the records to validate on",
                                     "shows whether the model overfits; 0: none, for few records",
                                     suggested_val_split(answers.data), as_check(in_range(0, 0.5))},
                                    options.val_split);
  answers.mode = interview.ask(
      {"--mode", "What to train",
       "lora: small adapters; qlora: the same over a base in 4 bits; full: every weight",
       suggested_mode(machine, headers), as_check(one_of({"lora", "qlora", "full"}))},
      options.mode);
  answers.max_seq_len = interview.ask(
      {"--max-seq-len", "Longest sequence in tokens", "more needs more memory and time",
       suggested_seq_len(machine, headers), as_check(at_least(16))},
      options.max_seq_len);
  answers.epochs = interview.ask({"--epochs", "Passes over the data", "3 is usual for LoRA", "3",
                                  as_check(in_range(0.01, 1000))},
                                 options.epochs);
  return answers;
}

std::string yaml_of(const RunAnswers& answers, const std::string& file) {
  const bool is_full = answers.mode == "full";
  std::string text = fmt::format(
      "# Written by `sftrun config init`. Every key: docs/configuration.md\n"
      "#   sftrun preview --config {0}          what the model will see, and which tokens are "
      "trained on\n"
      "#   sftrun train --config {0}            trains on all devices\n"
      "model:\n"
      "  name: {1}\n"
      "  max_seq_len: {2}              # tokens of a packed sequence; more needs more memory\n\n"
      "tuning:\n"
      "  mode: {3}\n",
      file, yaml_word(answers.model), answers.max_seq_len, answers.mode);
  if (!is_full)
    text +=
        "  lora:\n"
        "    r: 16                       # size of the adapter: 8 to 64\n"
        "    alpha: 32                   # its scale is alpha / r\n"
        "    target_modules: all-linear\n";
  text += fmt::format("\ndata:\n  train: {}\n", yaml_word(answers.data));
  const bool validates = std::stod(answers.val_split) > 0;
  if (validates)
    text += fmt::format("  val_split: {}               # of the records, to validate on\n",
                        answers.val_split);
  text += fmt::format(
      "\ntrain:\n"
      "  epochs: {}\n"
      "  batch_size: auto              # what fits; with grad_accum and global_batch_size auto 32 "
      "sequences a step\n"
      "  grad_accum: auto\n"
      "  learning_rate: {}         # {}\n"
      "  scheduler: cosine\n"
      "  warmup_ratio: 0.03\n"
      "{}"
      "  eval_strategy: {}\n"
      "  save_every: 10m               # a killed run loses at most these minutes\n"
      "  save_total_limit: 2\n",
      answers.epochs, is_full ? "2.0e-5" : "2.0e-4",
      is_full ? "a tenth of LoRA's" : "usual for LoRA",
      is_full ? "  gradient_checkpointing: true  # a third more time, much less memory\n" : "",
      validates ? "epoch" : "\"no\"");
  return text;
}

int init_run(const InitOptions& options) {
  const fs::path file = options.output.empty() ? fs::path("run.yaml") : options.output;
  std::error_code ignored;
  if (fs::exists(file, ignored) && !options.overwrite)
    throw ConfigError(fmt::format("{} exists already", file.string()),
                      "--output on the command line",
                      "choose another name with --output, or replace it with --overwrite");
  const MachineView machine = view_of_machine();
  fmt::print("{}\n", machine.text());
  const RunAnswers answers = ask_about_run(options, machine);
  write_file_atomically(file, yaml_of(answers, shell_word(file.string())));
  fmt::print("\nWrote {}\n", file.string());
  const int code = run_config({.action = "check", .config = file});
  fmt::print("Next: sftrun preview --config {0}, then sftrun train --config {0}\n",
             shell_word(file.string()));
  return code;
}

}  // namespace

int run_init(const InitOptions& options) {
  return options.machine ? init_machine(options) : init_run(options);
}

}  // namespace sftrun::app
