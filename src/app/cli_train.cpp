#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/step_range.h"
#include "sftrun/core/strings.h"
#include "sftrun/foreign/load.h"
#include "sftrun/launch/scheduler_env.h"

namespace sftrun::app {
namespace {

/// "node-a:29500", "node-a" or ":29500".
void set_master(LaunchFlags& options, const config::MachineSettings& settings, bool port_given) {
  const std::string& master = *settings.master;
  const size_t colon = master.rfind(':');
  options.master_addr = master.substr(0, colon);
  if (colon == std::string::npos || port_given) return;
  const int64_t port = to_number(master.substr(colon + 1), 0);
  if (port < 1 || port > kMaxPort) {
    throw ConfigError(fmt::format("`master: {}` has no port after the colon", master),
                      settings.file.string(), "write host:29500");
  }
  options.master_port = static_cast<int>(port);
}

/// Launch settings of files, where no flag is given. The first file that has a setting decides it.
class LaunchDefaults {
 public:
  LaunchDefaults(LaunchFlags& options, const CLI::App& command)
      : options_(options), command_(command) {}

  void take(const config::MachineSettings& settings) {
    take_devices(settings);
    take_nodes(settings);
  }

 private:
  void take_devices(const config::MachineSettings& settings) {
    const bool is_free = !has_devices_ && !given("--gpus") && !given("--nproc-per-node");
    if (settings.processes && is_free) {
      options_.nproc_per_node = std::to_string(*settings.processes);
      note(settings, fmt::format("processes on this machine: {}", *settings.processes));
    }
    if (settings.devices && *settings.devices != "auto" && is_free && !given("--device")) {
      if (*settings.devices == "cpu")
        options_.device = "cpu";
      else if (settings.devices->find(',') != std::string::npos)
        options_.gpus = *settings.devices;
      else
        options_.nproc_per_node = *settings.devices;
      note(settings, fmt::format("devices: {}", *settings.devices));
    }
    has_devices_ = has_devices_ || settings.devices || settings.processes;
  }

  void take_nodes(const config::MachineSettings& settings) {
    if (has_nodes_ || given("--nnodes")) return;
    has_nodes_ = settings.nodes.has_value();
    const bool is_one = settings.nodes.value_or(1) == 1;
    if (!is_one) {
      options_.nnodes = static_cast<int>(*settings.nodes);
      if (!given("--node-rank") && settings.node_rank)
        options_.node_rank = static_cast<int>(*settings.node_rank);
      note(settings, fmt::format("nodes: {}", options_.nnodes));
    }
    // Only a port is of use on one machine.
    const bool is_of_use = settings.master && (!is_one || settings.master->starts_with(':'));
    if (is_of_use && !given("--master-addr"))
      set_master(options_, settings, given("--master-port"));
  }

  bool given(const char* flag) const {
    const CLI::Option* option = command_.get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  }
  static void note(const config::MachineSettings& settings, std::string_view setting) {
    log::info("{} (from {})", setting, settings.file.string());
  }

  LaunchFlags& options_;
  const CLI::App& command_;
  bool has_devices_ = false, has_nodes_ = false;
};

/// Whether this process is a rank of a launcher.
bool is_started_by_other(const LaunchFlags& flags) {
  return launch::external_worker(launch::current_environment(), flags.asks_for_processes())
      .has_value();
}

}  // namespace

void apply_launch_files(TrainOptions& options, const CLI::App& command) {
  if (is_started_by_other(options)) return;
  const config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  LaunchDefaults defaults(options, command);
  defaults.take(loaded.accelerate);
  defaults.take(loaded.machine);
}

namespace {

/// The flags mean the same as keys on the command line.
void add_files_of_other_tools(TrainOptions& options) {
  const auto add = [&](const char* flag, const char* key, const std::filesystem::path& file) {
    if (file.empty()) return;
    require_exists(flag, file);
    options.overrides.push_back(fmt::format("{}={}", key, file.string()));
  };
  add("--accelerate-config", "parallel.accelerate", options.accelerate_config);
  add("--deepspeed", "parallel.deepspeed", options.deepspeed);
}

void check(const TrainOptions& options, const CLI::App& command) {
  require_config(command, options.config, options.overrides);
  check_launch_flags(options);
  if (options.overwrite && command.count("--resume") > 0) {
    throw ConfigError("--overwrite and --resume are both given", "the command line",
                      "use --overwrite to start from the beginning, or --resume to continue");
  }
  parse_step_range(options.profile, "--profile on the command line");
  if (options.resume != "auto" && options.resume != "never")
    require_exists("--resume", options.resume);
}

void add_run_flags(CLI::App& command, TrainOptions& options) {
  command
      .add_option("--max-restarts", options.max_restarts,
                  "Maximum number of restarts from the last checkpoint after a worker failed")
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option("--resume", options.resume,
                  "auto: resume from the run directory's last checkpoint; never; or a checkpoint's "
                  "directory")
      ->capture_default_str()
      ->type_name("auto|never|DIR");
  command.add_flag(
      "--overwrite", options.overwrite,
      "Start from the beginning; files of an earlier run in the run directory are moved aside");
  command.add_flag("--allow-changed-data", options.allow_changed_data,
                   "Resume although the data set has changed");
  command.add_flag(
      "--allow-changed-length", options.allow_changed_length,
      "Resume with another train.epochs or train.max_steps, on the new learning-rate schedule");
  command.add_flag("--allow-backend-change", options.allow_backend_change,
                   "Resume although tuning.backend has changed");
  command.add_flag("--dry-run", options.dry_run,
                   "Check settings, model and first records, print the resolved run, and stop");
  command
      .add_option("--profile", options.profile,
                  "Steps to profile, 5 or 5-7: writes a trace for Perfetto and a table of the time "
                  "per operation into the run directory's profile/")
      ->type_name("STEPS");
  command.add_option("--device", options.device, "Device to train on")
      ->check(device_name())
      ->capture_default_str();
  command
      .add_option("--accelerate-config", options.accelerate_config,
                  "Take processes, strategy and dtype from a configuration file of Accelerate "
                  "(docs/coming-from.md)")
      ->type_name("FILE");
  command
      .add_option("--deepspeed", options.deepspeed,
                  "Take strategy, dtype, batch sizes, optimizer and schedule from a configuration "
                  "file of DeepSpeed")
      ->type_name("FILE");
}

std::string why_nothing_resumed(const CLI::App& command) {
  if (idle::has(command, "--overwrite")) return " with --overwrite, which resumes nothing";
  return idle::value_of(command, "--resume") == "never" ? " with --resume never" : "";
}

}  // namespace

void apply_machine_file(LaunchFlags& flags, const CLI::App& command) {
  if (is_started_by_other(flags)) return;
  LaunchDefaults(flags, command).take(config::load_machine_settings());
}

Command add_train(CLI::App& sftrun) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command =
      add_command(sftrun, "train", "Fine-tune on all devices of this machine",
                  "sftrun train --config configs/run_lora.yaml train.epochs=1\n"
                  "  sftrun train --config configs/run_lora.yaml --gpus 0,1 --overwrite");
  command->add_option("-c,--config", options->config, "The run's YAML (docs/configuration.md)")
      ->type_name("FILE");
  add_overrides(*command, options->overrides);
  add_launch_flags(*command, *options);
  add_run_flags(*command, *options);
  constexpr const char* kHidden = "";
  command
      ->add_option("--model-path", options->model_path,
                   "Path of the model, from the launcher to its workers")
      ->group(kHidden);
  command
      ->add_option("--max-micro-batch", options->max_micro_batch,
                   "Largest automatic micro-batch, from the launcher to its workers")
      ->group(kHidden);
  command
      ->add_option("--images-of-bin", options->images_of_bin,
                   "Images of a packed sequence, from the launcher to its workers")
      ->group(kHidden);
  return {command,
          [options, command] {
            check(*options, *command);
            add_files_of_other_tools(*options);
            apply_launch_files(*options, *command);
            return run_train(*options);
          },
          /*other_words=*/{"finetune", "fine-tune", "fit", "run", "launch"},
          /*idle_rules=*/
          {{{"--allow-changed-data", "--allow-changed-length", "--allow-backend-change"},
            why_nothing_resumed},
           idle::launch_flags_of_rank()}};
}

}  // namespace sftrun::app
