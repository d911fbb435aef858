#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_tokenize(CLI::App& sftrun) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = add_command(
      sftrun, "tokenize",
      "Token ids of each record: adds \"input_ids\"; with --chat also \"assistant_mask\"",
      "sftrun tokenize --model models/base --chat --input in.jsonl --output out.jsonl");
  command
      ->add_option("-m,--model", options->model,
                   "Directory in Hugging Face layout, .gguf file, or a name on the hub")
      ->type_name("MODEL");
  command->add_flag("--chat", options->chat,
                    "Records are messages: render the chat template, add nothing else");
  command
      ->add_option("--input", options->input,
                   "JSON lines: text, or messages with --chat; -: standard input")
      ->type_name("FILE");
  command
      ->add_option("--output", options->output,
                   "Where the records go with their ids; -: standard output")
      ->type_name("FILE");
  return {command, [options, command] {
            require(!options->input.empty(), *command, "--input");
            require(!options->output.empty(), *command, "--output");
            options->model =
                checked_model(*command, options->model.string(), "", hub::ModelParts::kText);
            if (options->input != "-") require_exists("--input", options->input);
            if (options->output != "-") require_writable_file("--output", options->output);
            return run_tokenize(*options);
          }};
}

}  // namespace sftrun::app
