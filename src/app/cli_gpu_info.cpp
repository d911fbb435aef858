#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_gpu_info(CLI::App& sftrun) {
  auto options = std::make_shared<GpuInfoOptions>();
  CLI::App* command = add_command(
      sftrun, "gpu-info", "Show the GPUs, their state and links; without a GPU, CPU and memory",
      "sftrun gpu-info --json");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_flag("--watch", options->watch, "Print again every second until Ctrl-C");
  return {command, [options] { return run_gpu_info(*options); },
          /*other_words=*/{}, /*idle_rules=*/{}, /*works_anywhere=*/true};
}

}  // namespace sftrun::app
