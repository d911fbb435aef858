#include <memory>

#include "cli.h"

namespace sftrun::app {
Command add_preview(CLI::App& sftrun) {
  auto options = std::make_shared<PreviewOptions>();
  CLI::App* command =
      add_command(sftrun, "preview",
                  "Show the tokens of training examples, which of them are trained on, and why",
                  "sftrun preview --config configs/run_lora.yaml -n 5 --html preview.html");
  command->add_option("-c,--config", options->config, "The run's YAML")->type_name("FILE");
  add_overrides(*command, options->overrides);
  command->add_option("-n,--num-examples", options->num_examples, "Examples to show")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--val", options->validation,
                    "Show examples of data.val; without this flag they are only checked");
  command->add_option("--html", options->html, "Write an HTML page instead of printing text")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  return {
      command,
      [options, command] {
        require_at_most_one(*command, {"--html", "--json"});
        require_config(*command, options->config, options->overrides);
        if (options->html) require_page("--html", *options->html);
        return run_preview(*options);
      },
      /*other_words=*/{}, /*idle_rules=*/
      {{{"data.shuffle", "data.shuffle_buffer", "data.bin_tokens", "data.seed", "data.cache_dir"},
        idle::always(" in `sftrun preview`, which shows the first records")}}};
}

}  // namespace sftrun::app
