#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_report(CLI::App& sftrun) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = add_command(
      sftrun, "report", "Write one HTML page about runs: curves, memory, settings, findings",
      "sftrun report runs/run_lora\n"
      "  sftrun report runs/first runs/second --output comparison.html");
  command->add_option("run_dirs", options->run_dirs, "Run directories; several are compared")
      ->type_name("RUN_DIR");
  command
      ->add_option(
          "-o,--output", options->output,
          "Write the page here [RUN_DIR/report.html; of several runs comparison.html in the "
          "first]")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Print the findings as one JSON object");
  return {command, [options, command] {
            require(!options->run_dirs.empty(), *command, "RUN_DIR");
            for (const auto& directory : options->run_dirs) require_exists("RUN_DIR", directory);
            if (!options->output.empty()) options->special = SpecialFile::kAllowed;
            if (options->output.empty())
              options->output = options->run_dirs.front() /
                                (options->run_dirs.size() == 1 ? "report.html" : "comparison.html");
            require_page("--output", options->output);
            return run_report(*options);
          }};
}

}  // namespace sftrun::app
