#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "run_check.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/weights/vllm_adapter.h"

namespace sftrun::app {
namespace {

struct MergeOptions {
  std::string model, adapter, output, dtype = "auto", max_shard_size = "5GB",
                                      format = "safetensors";
};

bool is_adapter_alone(const MergeOptions& options) {
  return options.format == "vllm";
}

void check(const MergeOptions& options, const CLI::App& command) {
  require(!options.adapter.empty(), command, "--adapter");
  require(!options.output.empty(), command, "--output");
  for (const char* flag : {"--dtype", "--max-shard-size"}) {
    if (!is_adapter_alone(options) || command.count(flag) == 0) continue;
    throw ConfigError(fmt::format("{} is of merged models, --format vllm writes an adapter", flag),
                      fmt::format("{} on the command line", flag), "leave it away");
  }
  require_new_directory(options.output);
}

int merge(const MergeOptions& options, const CLI::App& command) {
  return run_in_engine("merge", {{"model", checked_model(command, options.model, options.adapter)},
                                 {"adapter", options.adapter},
                                 {"output", options.output},
                                 {"dtype", options.dtype},
                                 {"max_shard_size", parse_size(options.max_shard_size)},
                                 {"format", options.format}});
}

/// Of the model only its configuration is read.
int write_for_vllm(const MergeOptions& options, const CLI::App& command) {
  namespace fs = std::filesystem;
  const fs::path model =
      checked_model(command, options.model, options.adapter, hub::ModelParts::kText);
  write_new_directory(options.output, "the adapter", [&](const fs::path& directory) {
    weights::write_vllm_adapter(options.adapter, directory, read_arch(model));
  });
  log::info("wrote the adapter {} as vLLM reads it into {}", options.adapter, options.output);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace

Command add_merge(CLI::App& sftrun) {
  auto options = std::make_shared<MergeOptions>();
  CLI::App* command =
      add_command(sftrun, "merge", "Fold an adapter into its base, or write it as vLLM reads it",
                  "sftrun merge --adapter runs/first/adapter --output models/mine --dtype bf16");
  command->add_option("-m,--model", options->model,
                      "The adapter's base model [as the adapter names it]");
  command
      ->add_option("--adapter", options->adapter, "PEFT adapter: directory, or a name on the hub")
      ->type_name("ADAPTER");
  command->add_option("--output", options->output, "New directory for what is written")
      ->type_name("DIR");
  command->add_option("--dtype", options->dtype, "Type of the stored weights; auto: the base's")
      ->transform(stored_dtype())
      ->capture_default_str();
  command->add_option("--max-shard-size", options->max_shard_size, "Largest file; more are split")
      ->capture_default_str();
  command
      ->add_option("--format", options->format,
                   "safetensors: the merged model; vllm: the adapter alone, as vLLM reads it")
      ->check(one_of({"safetensors", "vllm"}))
      ->capture_default_str();
  return {command, [options, command] {
            check(*options, *command);
            find_adapter(options->adapter);
            return is_adapter_alone(*options) ? write_for_vllm(*options, *command)
                                              : merge(*options, *command);
          }};
}

}  // namespace sftrun::app
