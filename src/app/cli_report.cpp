#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/foreign/load.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

/// The output.dir of a run's YAML; empty: it is not one.
fs::path run_of_yaml(const fs::path& file) {
  try {
    config::LoadedConfig loaded = foreign::load_config(file, {});
    config::resolve(loaded, file, /*world_size=*/1);
    return loaded.config.output.dir;
  } catch (const Error&) {
    return {};  // another file, or a run with errors
  }
}

/// What to name instead of a file: the run directory that it is in, or that of a YAML.
std::string fix_for_file(const fs::path& file) {
  fs::path run = observe::run_directory_of(file);
  if (!run.empty() && !run.has_filename()) run = run.parent_path();  // "results/"
  if (run.empty()) run = run_of_yaml(file);
  if (run.empty()) return "name the output.dir of a run, such as runs/run_lora";
  const std::string named = fmt::format("sftrun report {}", shell_word(run.string()));
  return is_folder(run) ? fmt::format("name its run directory: {}", named)
                        : fmt::format("train it first, then: {}", named);
}

void require_run_directory(const fs::path& named) {
  require_exists("RUN_DIR", named);
  if (is_folder(named)) return;
  throw DataError(
      fmt::format("{} is a file, and `sftrun report` takes run directories", named.string()),
      "RUN_DIR on the command line", fix_for_file(named));
}

}  // namespace

Command add_report(CLI::App& sftrun) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = add_command(
      sftrun, "report", "Write one HTML page about runs: curves, memory, settings, findings",
      "sftrun report runs/run_lora\n"
      "  sftrun report runs/first runs/second --output comparison.html");
  command->add_option("run_dirs", options->run_dirs, "Run directories; several are compared")
      ->type_name("RUN_DIR");
  command
      ->add_option("-o,--output", options->output,
                   "Write the page to this file [RUN_DIR/report.html; for several runs "
                   "comparison.html in the first one]")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Print the findings as one JSON object");
  return {command,
          [options, command] {
            require(!options->run_dirs.empty(), *command, "RUN_DIR");
            for (const fs::path& directory : options->run_dirs) require_run_directory(directory);
            if (!options->output.empty()) options->special = SpecialFile::kAllowed;
            if (options->output.empty())
              options->output = options->run_dirs.front() /
                                (options->run_dirs.size() == 1 ? "report.html" : "comparison.html");
            require_page("--output", options->output);
            return run_report(*options);
          },
          /*other_words=*/{"plot"}};
}

}  // namespace sftrun::app
