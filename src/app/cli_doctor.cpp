#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_doctor(CLI::App& sftrun) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = add_command(
      sftrun, "doctor",
      "Check drivers, GPUs, memory, disk, network and limits, and run a real all-reduce",
      "sftrun doctor\n"
      "  sftrun doctor --nnodes 2 --node-rank 0 --master-addr node-a   # on the other: --node-rank "
      "1");
  add_launch_flags(*command, *options);
  command->add_option("--device", options->device, "Device of the all-reduce")
      ->check(device_name())
      ->capture_default_str();
  command->add_flag("--no-all-reduce", options->no_all_reduce,
                    "Only check the machine; start no processes");
  command->add_flag("--json", options->json, "Print one JSON object");
  constexpr const char* kHidden = "";
  command
      ->add_option("--result", options->result,
                   "File for the numbers, from the launcher to its workers")
      ->group(kHidden);
  return {command,
          [options, command] {
            check_launch_flags(*options);
            apply_machine_file(*options, *command);
            return run_doctor(*options);
          },
          /*other_words=*/{"env"},
          /*idle_rules=*/{idle::launch_flags_of_rank()}};
}

}  // namespace sftrun::app
