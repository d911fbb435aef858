#include <memory>

#include "cli.h"

namespace sftrun::app {

Command add_tokenize(CLI::App& sftrun) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command =
      add_command(sftrun, "tokenize",
                  "Tokenize records: adds \"input_ids\"; with --chat also \"assistant_mask\"; for "
                  "preference records both sequences and their \"completion_mask\"; for answers "
                  "with a \"label\" true or false \"prompt_ids\" and \"completion_ids\"",
                  "sftrun tokenize --model models/base --chat --input in.jsonl --output out.jsonl");
  command
      ->add_option("-m,--model", options->model,
                   "Directory in Hugging Face layout, .gguf file, or a name on the hub")
      ->type_name("MODEL");
  command->add_flag("--chat", options->chat, "Records hold messages: apply the chat template");
  auto records = std::make_shared<RecordFlags>(RecordFlags{.replaces_jsonl = true});
  add_record_flags(*command, *records, "text, or messages with --chat",
                   "the records with their token ids");
  return {command,
          [options, records, command] {
            require(!records->input.empty(), *command, "--input");
            require(!records->output.empty(), *command, "--output");
            options->model =
                checked_model(*command, options->model.string(), "", hub::ModelParts::kText);
            check_record_flags(*records);
            options->input = input_of(*records);
            options->output = records->output;
            return run_tokenize(*options);
          },
          /*other_words=*/{"tokenise"},
          /*idle_rules=*/{idle::overwrite_of_stream()}};
}

}  // namespace sftrun::app
