#include <memory>

#include "cli.h"
#include "sftrun/config/import.h"

namespace sftrun::app {
namespace {

Command add_action(CLI::App& config, const std::string& action, const std::string& description,
                   bool reads_file) {
  auto options = std::make_shared<ConfigOptions>();
  options->action = action;
  CLI::App* command = add_command(
      config, action, description,
      reads_file ? "sftrun config " + action + " --config configs/run_lora.yaml"
                 : "sftrun config " + action + " > " +
                       (action == "schema" ? "sftrun.schema.json" : "configuration.md"));
  if (!reads_file) return {command, [options] { return run_config(*options); }};
  command->add_option("-c,--config", options->config, "The run's YAML")->type_name("FILE");
  add_overrides(*command, options->overrides);
  command->add_flag("--json", options->json, "Print one JSON object");
  command
      ->add_option("--world-size", options->world_size,
                   "Number of devices for automatic batch sizes [the number that the batch sizes "
                   "imply, else 1]")
      ->check(at_least(1));
  return {command, [options, command] {
            require_config(*command, options->config, options->overrides);
            return run_config(*options);
          }};
}

Command add_import(CLI::App& config) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = add_command(
      config, "import",
      "Translate a configuration of Accelerate, DeepSpeed, Axolotl, LLaMA-Factory or torchtune",
      "sftrun config import axolotl.yaml --output run.yaml\n"
      "  sftrun config import ds_config.json --from deepspeed");
  command->add_option("file", options->file, "The file of the other tool")->type_name("FILE");
  command->add_option("-o,--output", options->output, "Write the YAML here [standard output]")
      ->type_name("FILE");
  command->add_option("--from", options->from, "The tool [recognised from the file's keys]")
      ->check(one_of(config::tool_words()))
      ->type_name("TOOL");
  command->add_flag("--json", options->json, "Print one JSON object");
  return {command, [options, command] {
            require(!options->file.empty(), *command, "FILE");
            require_exists("FILE", options->file);
            if (!options->output.empty()) require_writable_file("--output", options->output);
            return run_import(*options);
          }};
}

}  // namespace

std::vector<Command> add_config(CLI::App& sftrun) {
  CLI::App* config = add_command(sftrun, "config", "Check, show and document configurations",
                                 "sftrun config check --config configs/run_lora.yaml");
  config->require_subcommand(0, 1);
  return {
      add_action(
          *config, "check",
          "Validate a configuration and its overrides; print each problem with its place and a fix",
          true),
      add_action(*config, "show",
                 "Print the complete configuration, with defaults and automatic values", true),
      add_action(*config, "reference", "Print every key as Markdown (docs/configuration.md)",
                 false),
      add_action(*config, "schema", "Print a JSON Schema for editors", false), add_import(*config)};
}

}  // namespace sftrun::app
