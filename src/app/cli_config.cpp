#include <memory>

#include "cli.h"
#include "sftrun/config/objectives.h"
#include "sftrun/foreign/import.h"

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
  if (!reads_file)
    return {command, [options] { return run_config(*options); },
            /*other_words=*/{}, /*idle_rules=*/{}, /*works_anywhere=*/true};
  command->add_option("-c,--config", options->config, "The run's YAML")->type_name("FILE");
  add_overrides(*command, options->overrides);
  command->add_flag("--json", options->json, "Print one JSON object");
  command
      ->add_option("--world-size", options->world_size,
                   "Number of devices for automatic batch sizes [the number that the batch sizes "
                   "imply, else 1]")
      ->check(at_least(1, 4096 * kMaxMachines));
  return {command, [options, command] {
            require_config(*command, options->config, options->overrides);
            return run_config(*options);
          }};
}

Command add_init(CLI::App& config) {
  auto options = std::make_shared<InitOptions>();
  CLI::App* command = add_command(
      config, "init",
      "Write the YAML of a run, or with --machine the launch settings of this machine. Asks "
      "questions at a terminal; each flag answers one of them",
      "sftrun config init --model Qwen/Qwen3-0.6B --data data/train.jsonl\n"
      "  sftrun config init --machine --nodes 2 --node-rank 1 --master node-a:29500 --yes");
  command->add_flag("--machine", options->machine,
                    "Write the machine file: the launch settings of all runs on this machine");
  command->add_flag("-y,--yes", options->yes, "Ask nothing; take the defaults");
  command
      ->add_option("-o,--output", options->output,
                   "File to write [run.yaml; with --machine the machine file]")
      ->type_name("FILE");
  command->add_flag("--overwrite", options->overwrite, "Replace --output if it exists");
  const auto answer = [&](const char* flag, std::optional<std::string>& value, const char* text,
                          const char* takes) {
    command->add_option(flag, value, text)->type_name(takes);
  };
  answer("--model", options->model, "Base model [one that suits the machine]", "MODEL");
  answer("--data", options->data, "Training data [data/train.jsonl, if it exists]", "PATH");
  answer("--val-split", options->val_split,
         "Share of the records to hold out for validation [0.05; for a JSONL file with fewer than "
         "100 records 0]",
         "NUMBER");
  answer("--mode", options->mode, "lora, qlora or full [the one that fits]", "MODE");
  answer("--max-seq-len", options->max_seq_len, "Longest sequence in tokens [2048, on a CPU 512]",
         "N");
  answer("--epochs", options->epochs, "Passes over the data [3]", "NUMBER");
  command
      ->add_option("--objective", options->objective,
                   "What training minimises, as train.objective has it [by the columns of the "
                   "data]")
      ->check(one_of(config::objective_names([](const config::ObjectiveInfo&) { return true; })))
      ->type_name("NAME");
  command
      ->add_option("--fields", options->fields,
                   "The columns of the data by our names, as data.fields has them: "
                   "instruction=question,output=answer [by the columns of the data]")
      ->allow_extra_args(false)
      ->type_name("KEY=COLUMN,…");
  command
      ->add_option("--reward", options->rewards,
                   "With data of prompts or questions: what judges the model's answers, as "
                   "train.rollouts.reward has it; may be given several times [by the columns of "
                   "the data]")
      ->allow_extra_args(false)
      ->type_name("REWARD");
  answer("--teacher", options->teacher, "With --objective distill: the teacher, as train.teacher",
         "MODEL");
  answer("--devices", options->devices, "With --machine: auto, cpu, a number or a list [auto]",
         "N|0,2,3");
  answer("--dtype", options->dtype, "With --machine: compute dtype [auto]", "DTYPE");
  answer("--strategy", options->strategy, "With --machine: strategy for several devices [auto]",
         "STRATEGY");
  answer("--nodes", options->nodes, "With --machine: machines of each run [1]", "N");
  answer("--node-rank", options->node_rank, "With --machine: number of this machine, from 0 [0]",
         "N");
  answer("--master", options->master, "With --machine: address of machine 0", "ADDRESS");
  return {
      command, [options, command] {
        for (const char* flag :
             {"--devices", "--dtype", "--strategy", "--nodes", "--node-rank", "--master"})
          if (!options->machine && command->count(flag) > 0) require(false, *command, "--machine");
        for (const char* flag : {"--model", "--data", "--val-split", "--mode", "--max-seq-len",
                                 "--epochs", "--objective", "--fields", "--reward", "--teacher"})
          if (options->machine && command->count(flag) > 0)
            require_at_most_one(*command, {"--machine", flag});
        if (!options->machine && !options->output.empty())
          require_writable_file("--output", options->output);
        return run_init(*options);
      }};
}

Command add_import(CLI::App& config) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = add_command(config, "import",
                                  "Translate a configuration of Accelerate, DeepSpeed, Axolotl, "
                                  "LLaMA-Factory, TRL or torchtune",
                                  "sftrun config import axolotl.yaml --output run.yaml\n"
                                  "  sftrun config import ds_config.json --from deepspeed");
  command->add_option("file", options->file, "The file of the other tool")->type_name("FILE");
  command->add_option("-o,--output", options->output, "Write the YAML here [standard output]")
      ->type_name("FILE");
  command->add_flag("--overwrite", options->overwrite, "Replace --output if it exists");
  command->add_option("--from", options->from, "The tool [recognised from the file's keys]")
      ->check(one_of(foreign::tool_words()))
      ->type_name("TOOL");
  command->add_flag("--json", options->json, "Print one JSON object");
  return {command,
          [options, command] {
            require(!options->file.empty(), *command, "FILE");
            require_exists("FILE", options->file);
            if (!options->output.empty()) require_writable_file("--output", options->output);
            return run_import(*options);
          },
          /*other_words=*/{}, /*idle_rules=*/{{{"--overwrite"}, idle::without("--output")}}};
}

}  // namespace

Command add_config(CLI::App& sftrun) {
  CLI::App* config = add_command(sftrun, "config", "Write, check, show and document configurations",
                                 "sftrun config check --config configs/run_lora.yaml");
  config->require_subcommand(0, 1);
  return {
      .parser = config,
      .actions = {
          add_init(*config),
          add_action(*config, "check",
                     "Validate a configuration and its overrides; print each problem with its "
                     "place and a fix",
                     true),
          add_action(*config, "show",
                     "Print the complete configuration, with defaults and automatic values", true),
          add_action(*config, "reference", "Print every key as Markdown (docs/configuration.md)",
                     false),
          add_action(*config, "schema", "Print a JSON Schema for editors", false),
          add_import(*config)}};
}

}  // namespace sftrun::app
