#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"

namespace sftrun::app {

Command add_memory_check(CLI::App& sftrun) {
  auto options = std::make_shared<MemoryCheckOptions>();
  CLI::App* command =
      add_command(sftrun, "memory-check",
                  "Estimate the memory of a run and the sizes that fit; without --config, show the "
                  "memory in use",
                  "sftrun memory-check --config configs/run_lora.yaml --gpus \"2x RTX4090\"\n"
                  "  sftrun memory-check");
  TrainOptions& run = options->run;
  command
      ->add_option("-c,--config", run.config,
                   "The run's YAML; of the model, only config.json and the headers of its files "
                   "are read, also from the hub")
      ->type_name("FILE");
  add_overrides(*command, run.overrides);
  command
      ->add_option("--gpus", run.gpus,
                   "GPUs to plan for, by name or memory (2x RTX4090, 24GB); or a number or list of "
                   "this machine's GPUs [all visible; without a GPU the CPU]")
      ->type_name("CARDS|N|0,2,3");
  command
      ->add_option("--nproc-per-node", run.nproc_per_node,
                   "Processes on each machine; auto: one per GPU, one on a CPU")
      ->check(process_count())
      ->capture_default_str();
  command->add_option("--nnodes", run.nnodes, "Machines in the run, all with these GPUs")
      ->check(at_least(1, kMaxMachines))
      ->capture_default_str();
  command->add_option("--device", run.device, "Device to plan for")
      ->check(device_name())
      ->capture_default_str();
  add_image_flags(*command, options->images, "Plan for");
  command->add_flag("--json", options->json, "Print one JSON object");
  return {
      command,
      [options, command] {
        TrainOptions& asked = options->run;
        const bool plans = command->count("--config") > 0 || !asked.overrides.empty();
        for (const char* flag : {"--gpus", "--nproc-per-node", "--nnodes", "--device", "--images"})
          require(plans || command->count(flag) == 0, *command, "--config");
        require_images_of_size(*command);
        if (plans) {
          require_config(*command, asked.config, asked.overrides);
          apply_launch_files(asked, *command);
        }
        return run_memory_check(*options);
      },
      /*other_words=*/{"memory"}};
}

}  // namespace sftrun::app
