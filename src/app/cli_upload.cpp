#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {

Command add_upload(CLI::App& sftrun) {
  auto options = std::make_shared<UploadOptions>();
  CLI::App* command = add_command(
      sftrun, "upload", "Upload a run's adapter or model to the hub, with its model card",
      "sftrun upload runs/run_lora owner/name --private\n"
      "  sftrun upload runs/run_lora --dry-run\n"
      "  sftrun upload runs/run_lora owner/name-GGUF --what gguf --from mine.gguf");
  command
      ->add_option("run", options->run,
                   "Run directory, adapter, or what `sftrun merge` wrote: a folder or a .gguf file")
      ->type_name("RUN");
  command
      ->add_option("repo", options->repo,
                   "owner/name on the hub [the token's user, and the name of the run]")
      ->type_name("REPO");
  command
      ->add_option("--what", options->what,
                   "The run's adapter, its merged model, or its .gguf file [what RUN holds]")
      ->check(one_of({"auto", "adapter", "merged", "gguf"}))
      ->type_name("adapter|merged|gguf");
  command
      ->add_option("--from", options->from,
                   "What `sftrun merge` wrote [merged/ or merged.gguf in RUN]")
      ->type_name("PATH");
  command
      ->add_option("--base", options->base,
                   "Name of the base model on the hub, where the run names a local path")
      ->type_name("MODEL");
  command->add_flag("--private", options->is_private, "Create the repository as a private one");
  command->add_option("--revision", options->revision, "Branch, created if there is none [main]");
  command->add_option("-m,--message", options->message, "Message of the commit")->type_name("TEXT");
  command->add_flag("--dry-run", options->dry_run, "List the files and their sizes; send nothing");
  command->add_flag("--json", options->json, "Print one JSON object instead of the address");
  return {command,
          [options, command] {
            require(!options->run.empty(), *command, "RUN");
            if (command->count("--message") > 0 && trim(options->message).empty())
              throw ConfigError("--message is empty", std::string(kCommandLine),
                                "say what the commit is, or leave the flag out");
            return run_upload(*options);
          },
          /*other_words=*/{"push", "push-to-hub", "publish"}};
}

}  // namespace sftrun::app
