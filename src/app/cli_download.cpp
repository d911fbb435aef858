#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_download(CLI::App& sftrun) {
  auto options = std::make_shared<DownloadOptions>();
  CLI::App* command = add_command(
      sftrun, "download", "Download a model or data set from the hub into Hugging Face's cache",
      "sftrun download HuggingFaceTB/SmolLM2-135M-Instruct\n"
      "  sftrun download hf://owner/name-GGUF/name-q8_0.gguf\n"
      "  sftrun download hf://datasets/owner/name@v1.0 --json");
  command
      ->add_option("model", options->name,
                   "owner/name[@revision], hf://owner/name/file, hf://datasets/owner/name")
      ->type_name("MODEL");
  command->add_option("--revision", options->revision, "Branch, tag or commit [main]");
  command->add_flag("--json", options->json, "Print one JSON object instead of the directory");
  return {command,
          [options, command] {
            require(!options->name.empty(), *command, "the name of a model");
            return run_download(*options);
          },
          /*other_words=*/{"pull"},
          /*idle_rules=*/{}, /*works_anywhere=*/true};
}

}  // namespace sftrun::app
