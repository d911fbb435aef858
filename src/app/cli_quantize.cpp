#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"

namespace sftrun::app {
namespace {

struct QuantizeOptions {
  std::string model, output, method = "nf4", dtype = "auto", max_shard_size = "5GB";
  int64_t block_size = 64;
  bool no_double_quant = false;
  std::vector<std::string> skip_modules;
};

void check_unused(const QuantizeOptions& options, const CLI::App& command) {
  if (options.method == "nf4" || options.method == "fp4") return;
  for (const char* flag : {"--block-size", "--no-double-quant"}) {
    if (command.count(flag) == 0) continue;
    throw ConfigError(
        fmt::format("{} is of 4 bits, --method is {}: a row has one factor", flag, options.method),
        fmt::format("{} on the command line", flag), "leave it away");
  }
}

int quantize(const QuantizeOptions& options, const CLI::App& command) {
  require(!options.model.empty(), command, "--model");
  require(!options.output.empty(), command, "--output");
  check_unused(options, command);
  require_new_directory(options.output);
  return run_in_engine("quantize", {{"model", checked_model(command, options.model, "")},
                                    {"output", options.output},
                                    {"method", options.method},
                                    {"block_size", options.block_size},
                                    {"double_quant", !options.no_double_quant},
                                    {"skip_modules", options.skip_modules},
                                    {"dtype", options.dtype},
                                    {"max_shard_size", parse_size(options.max_shard_size)}});
}

}  // namespace

Command add_quantize(CLI::App& sftrun) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command =
      add_command(sftrun, "quantize", "Write a model in 4 or 8 bits, as transformers loads it",
                  "sftrun quantize --model models/base --method nf4 --output models/base-bnb-4bit");
  command->add_option("-m,--model", options->model,
                      "HF directory, .gguf file, or a name on the hub");
  command->add_option("--output", options->output, "New directory for what is written")
      ->type_name("DIR");
  command
      ->add_option("--method", options->method,
                   "nf4, fp4 and int8 as bitsandbytes has them; fp8 (e4m3) as compressed-tensors, "
                   "which vLLM reads, too")
      ->check(one_of({"nf4", "fp4", "fp8", "int8"}))
      ->capture_default_str();
  command->add_option("--block-size", options->block_size, "Of 4 bits: values that share a factor")
      ->check(one_of({"32", "64", "128", "256", "512", "1024", "2048", "4096"}))
      ->capture_default_str();
  command->add_flag("--no-double-quant", options->no_double_quant,
                    "Of 4 bits: keep the blocks' factors in 32 bits (4.5 bits a value, not 4.13)");
  command
      ->add_option("--skip-modules", options->skip_modules,
                   "Modules that stay as they are: names or parts of names")
      ->type_name("NAME");
  command
      ->add_option("--dtype", options->dtype,
                   "Type of what is not quantised, and of what is when it is unpacked; auto: the "
                   "base's")
      ->transform(stored_dtype())
      ->capture_default_str();
  command->add_option("--max-shard-size", options->max_shard_size, "Largest file; more are split")
      ->capture_default_str();
  return {command, [options, command] { return quantize(*options, *command); }};
}

}  // namespace sftrun::app
