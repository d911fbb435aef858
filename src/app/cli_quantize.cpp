#include <fmt/format.h>

#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"

namespace sftrun::app {
namespace {

struct QuantizeOptions {
  std::string model, output, method = "nf4", dtype = "auto", max_shard_size = "5GB";
  QuantFlags quant;
};

int quantize(const QuantizeOptions& options, const CLI::App& command) {
  require(!options.model.empty(), command, "--model");
  require(!options.output.empty(), command, "--output");
  check_quant_flags(command, "--method", options.method);
  require_new_directory(options.output);
  return run_in_engine("quantize", {{"model", checked_model(command, options.model, "")},
                                    {"output", options.output},
                                    {"method", options.method},
                                    {"block_size", options.quant.block_size.value_or(64)},
                                    {"double_quant", !options.quant.no_double_quant},
                                    {"skip_modules", options.quant.skip_modules},
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
  add_quant_flags(*command, options->quant, "64");
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
