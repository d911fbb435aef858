#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/gguf_export.h"

namespace sftrun::app {
namespace {

struct QuantizeOptions {
  std::string model, method = "nf4", dtype = "auto", max_shard_size = "5GB";
  QuantRequest quant;
  OutputFlags output;
};

/// The methods for GGUF files, which are written like those of `sftrun merge --format gguf`.
std::vector<std::string> gguf_methods() {
  std::vector<std::string> methods = weights::gguf_mixes();
  std::erase_if(methods, [](const std::string& mix) { return !mix.starts_with('q'); });
  return methods;
}

bool is_of_gguf(const QuantizeOptions& options) {
  const std::vector<std::string> methods = gguf_methods();
  return std::find(methods.begin(), methods.end(), options.method) != methods.end();
}

std::vector<std::string> all_methods() {
  std::vector<std::string> methods = written_quant_names();
  for (const std::string& method : gguf_methods()) methods.push_back(method);
  return methods;
}

/// Of an unknown method only those that --output can have are suggested.
void check_method(const QuantizeOptions& options) {
  const std::vector<std::string> all = all_methods();
  if (std::find(all.begin(), all.end(), options.method) != all.end()) return;
  require_one_of("--method", options.method, options.output.is_file() ? gguf_methods() : all);
}

CLI::Validator method_name() {
  return CLI::Validator(
      [](std::string& text) {
        text = ascii_lower(text);
        return std::string();
      },
      join(all_methods(), "|"));
}

void check(const QuantizeOptions& options, const CLI::App& command) {
  require(!options.model.empty(), command, "--model");
  require(!options.output.path.empty(), command, "--output");
  check_method(options);
  check_quant_flags(command, "--method", options.method);
  if (options.output.is_file() && !is_of_gguf(options)) {
    throw ConfigError(
        fmt::format("--output names a .gguf file, but --method {} writes safetensors",
                    options.method),
        "--output on the command line",
        "name a directory, or choose a GGUF method: --method " + gguf_methods().front());
  }
  for (const char* flag : {"--dtype", "--max-shard-size"}) {
    if (!is_of_gguf(options) || command.count(flag) == 0) continue;
    throw ConfigError(
        fmt::format("{} is only for safetensors models, but --method {} writes a GGUF file", flag,
                    options.method),
        fmt::format("{} on the command line", flag), "remove it");
  }
  check_output(options.output);
}

int quantize(const QuantizeOptions& options, const CLI::App& command) {
  check(options, command);
  const std::string model = checked_model(command, options.model, "");
  require_apart(options.output, model);
  const std::string output = options.output.path.string();
  const int64_t max_shard_size = parse_size(options.max_shard_size, "--max-shard-size");
  if (is_of_gguf(options)) {
    return run_in_engine(MergeRequest{.model = model,
                                      .output = output,
                                      .format = "gguf",
                                      .dtype = options.method,
                                      .max_shard_size = max_shard_size,
                                      .as_stored = true,
                                      .overwrite = options.output.overwrite,
                                      .json = options.output.json,
                                      .quant = {.skip_modules = options.quant.skip_modules}});
  }
  return run_in_engine(QuantizeRequest{.model = model,
                                       .output = output,
                                       .method = options.method,
                                       .dtype = options.dtype,
                                       .max_shard_size = max_shard_size,
                                       .quant = options.quant,
                                       .overwrite = options.output.overwrite,
                                       .json = options.output.json});
}

}  // namespace

Command add_quantize(CLI::App& sftrun) {
  auto options = std::make_shared<QuantizeOptions>();
  CLI::App* command = add_command(
      sftrun, "quantize", "Quantise a model and write it for transformers, vLLM or llama.cpp",
      "sftrun quantize --model models/base --method nf4 --output models/base-bnb-4bit\n"
      "  sftrun quantize --model models/base --method q4_k_m --output base-Q4_K_M.gguf");
  command->add_option("-m,--model", options->model,
                      "Directory in Hugging Face layout, .gguf file, or a name on the hub");
  add_output_flags(*command, options->output, "New directory, or the .gguf file to write");
  command
      ->add_option(
          "--method", options->method,
          quant_descriptions(written_quant_names()) + ". The other methods write GGUF files")
      ->transform(method_name())
      ->capture_default_str();
  add_quant_flags(*command, options->quant, "64");
  command
      ->add_option("--dtype", options->dtype,
                   "dtype of the modules that are not quantised; auto: the base's")
      ->transform(stored_dtype())
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", options->max_shard_size,
                   "Maximum file size; larger models are split into several files")
      ->capture_default_str();
  return {command, [options, command] { return quantize(*options, *command); },
          /*other_words=*/{"quantise"}};
}

}  // namespace sftrun::app
