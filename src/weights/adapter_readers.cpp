#include "sftrun/weights/adapter_readers.h"

#include <algorithm>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/quant_format.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/quantised_modules.h"
#include "sftrun/spec/quantization_config.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/gguf_lora.h"
#include "sftrun/weights/vllm_adapter.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

bool is_gguf(const fs::path& path) {
  return ascii_lower(path.extension().string()) == ".gguf";
}

/// A directory with quantised linear layers.
struct QuantisedDirectory {
  std::string word;  ///< "4 bits", "int8" or "FP8"; empty: not quantised
  bool has_4bit_codes() const { return word == "4 bits"; }
};

std::string peft_name_of(QuantFormat format) {
  return std::string(quant_info(format).peft_name);
}

QuantisedDirectory quantised_directory(const fs::path& base) {
  std::error_code ignored;
  if (!fs::is_directory(base, ignored)) return {};
  const nlohmann::json config = parse_json(read_text_file(base / "config.json"), base.string());
  const auto quantization = spec::read_quantization_config(config, base.string());
  if (!quantization) return {};
  if (quantization->method == "bitsandbytes")
    return {peft_name_of(quantization->load_in_8bit ? QuantFormat::kInt8 : QuantFormat::kNf4)};
  return {quantization->is_fp8() ? peft_name_of(QuantFormat::kFp8) : ""};
}

/// Format of the base's linear layers: "4 bits", "int8" or "FP8"; empty: not quantised by the run
/// or in its files.
std::string word_of_base(const WrittenAdapter& adapter) {
  const std::string& method = adapter.quantised_to;
  if (method.empty()) return quantised_directory(adapter.base).word;
  return std::string(find_quant_format(method)->peft_name);
}

bool saves_linear_layers(const WrittenAdapter& adapter) {
  const std::vector<std::string> modules = spec::quantised_modules(adapter.arch);
  return std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
    return spec::is_saved(adapter.config.lora.modules_to_save, module + ".weight");
  });
}

/// What PEFT does not support on a quantised base, unlike this program; empty: nothing.
std::string beyond_peft(const WrittenAdapter& adapter) {
  const std::string word = word_of_base(adapter);
  if (word.empty()) return {};
  if (saves_linear_layers(adapter))
    return fmt::format("it does not support modules_to_save over {}", word);
  if (adapter.config.lora.dora && word != "4 bits")
    return fmt::format("it does not support DoRA over {}", word);
  return {};
}

/// The base on which the adapter gives the results of training.
std::string fitting_base(const WrittenAdapter& adapter) {
  if (adapter.quantised_to.empty()) return {};
  std::string base = fmt::format(", over the base in {}, written by `{}`", adapter.quantised_to,
                                 adapter.quantize_command);
  if (!adapter.dense_when_written.empty())
    base += fmt::format(" (approximately: {} are unquantised there, but were in {} in this run)",
                        adapter.dense_when_written, adapter.quantised_to);
  return base;
}

/// With PiSSA the residual base was quantised, and it is not saved.
bool is_rough(const WrittenAdapter& adapter) {
  return adapter.uses_pissa && !word_of_base(adapter).empty();
}

std::string peft_line(const WrittenAdapter& adapter) {
  const std::string& name = adapter.config.base_model_name_or_path;
  if (is_rough(adapter))
    return "PEFT: approximately, over the unquantised model: the run quantised the PiSSA residual, "
           "which is not saved";
  if (is_gguf(name)) {
    const fs::path file = name;
    return fmt::format(
        "PEFT: over the GGUF file if transformers supports the family (from_pretrained(\"{}\", "
        "gguf_file=\"{}\")), or over the model that the file was converted from: the file does not "
        "name it, so set base_model_name_or_path in {}",
        file.parent_path().string(), file.filename().string(),
        (adapter.directory / "adapter_config.json").string());
  }
  if (const std::string reason = beyond_peft(adapter); !reason.empty())
    return fmt::format(
        "PEFT: does not load over this base ({}): load it over the unquantised model", reason);
  std::string line = "PEFT: loads directly" + fitting_base(adapter);
  if (adapter.config.lora.dora && word_of_base(adapter) == "4 bits")
    line +=
        "; on a CPU with AVX512-BF16 for training only, because bitsandbytes 0.50 repacks the base "
        "for inference there, and PEFT's DoRA still assumes the old layout: use the unquantised "
        "model for inference";
  if (is_gguf(adapter.base))
    line += fmt::format(", over {}, from which {} was converted according to its metadata", name,
                        adapter.base.filename().string());
  if (!adapter.config.lora.target_parameters.empty()) line += ", with transformers 5 or newer";
  return line;
}

std::string merge_command(const WrittenAdapter& adapter, const char* options, const char* suffix) {
  const std::string directory = adapter.directory.string();
  return fmt::format("`sftrun merge {}--adapter {} --output {}`", options, shell_word(directory),
                     shell_word(directory + suffix));
}

std::string vllm_line(const WrittenAdapter& adapter) {
  const spec::LoraSpec& lora = adapter.config.lora;
  if (const auto refusal =
          vllm_refusal(lora, !lora.modules_to_save.empty(), adapter.arch, adapter.is_adapted)) {
    return fmt::format("vLLM: not as an adapter ({}): serve the output of {}", refusal->what,
                       merge_command(adapter, "", "-merged"));
  }
  const int64_t allowed = vllm_max_lora_rank(lora);
  const auto reading = vllm_reading(adapter.arch, adapter.is_adapted);
  const std::string& name = adapter.config.base_model_name_or_path;
  std::string line = "vLLM: loads directly";
  if (reading)
    line = fmt::format("vLLM: load the output of {}",
                       merge_command(adapter, "--format vllm ", "-vllm"));
  else if (is_rough(adapter))
    line = "vLLM: approximately, over the unquantised model";
  else if (!adapter.quantised_to.empty())
    line += ", over the same base";
  else if (is_gguf(adapter.base))
    line += ", over " + (is_gguf(name) ? "the model that the file was converted from" : name);
  if (allowed > vllm_max_lora_rank({.r = 1}))
    line += fmt::format(", with --max-lora-rank {}", allowed);
  if (reading) line += fmt::format("; without conversion: {}", reading->what);
  return line;
}

/// The fix of an error, with the full command.
std::string llama_cpp_fix(const WrittenAdapter& adapter, const std::string& fix) {
  if (fix.ends_with("--format gguf"))
    return "merge it: " + merge_command(adapter, "--format gguf --dtype q8_0 ", "-merged-gguf");
  return fix;
}

std::string llama_cpp_line(const WrittenAdapter& adapter) {
  try {
    require_gguf_lora(adapter.config, adapter.directory,
                      {adapter.base, adapter.arch, adapter.is_adapted});
  } catch (const DataError& error) {
    return fmt::format("llama.cpp: not as an adapter: {}; {}", error.message(),
                       llama_cpp_fix(adapter, error.fix()));
  }
  return fmt::format("llama.cpp: {}load the output of {} with {}",
                     is_rough(adapter) ? "approximately, " : "",
                     merge_command(adapter, "--format lora-gguf ", "-gguf"),
                     is_gguf(adapter.base) ? adapter.base.string() : "the base as a GGUF file");
}

}  // namespace

std::vector<std::string> reader_support(const WrittenAdapter& adapter) {
  return {peft_line(adapter), vllm_line(adapter), llama_cpp_line(adapter)};
}

}  // namespace sftrun::weights
