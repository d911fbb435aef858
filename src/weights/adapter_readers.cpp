#include "sftrun/weights/adapter_readers.h"

#include <algorithm>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
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

/// kNone: a GGUF file, or not quantised.
QuantLayout layout_of_directory(const fs::path& base) {
  if (!is_folder(base)) return QuantLayout::kNone;
  const nlohmann::json config = parse_json(read_text_file(base / "config.json"), base.string());
  const auto quantization = spec::read_quantization_config(config, base.string());
  return quantization ? quantization->layout() : QuantLayout::kNone;
}

/// Of the base that a reader of the adapter loads, if its linear layers are quantised.
QuantLayout layout_of_base(const WrittenAdapter& adapter) {
  return adapter.quantised_to.empty() ? layout_of_directory(adapter.base)
                                      : find_quant_format(adapter.quantised_to)->layout;
}

/// The run quantised the base as no file has it.
bool has_unwritten_base(const WrittenAdapter& adapter) {
  return !adapter.quantised_to.empty() && !adapter.unwritten_because.empty();
}

bool saves_linear_layers(const WrittenAdapter& adapter) {
  const std::vector<std::string> modules = spec::quantised_modules(adapter.arch);
  return std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
    return spec::is_saved(adapter.config.lora.modules_to_save, module + ".weight");
  });
}

/// What PEFT does not support on a quantised base, unlike this program; empty: nothing.
std::string beyond_peft(const WrittenAdapter& adapter) {
  const QuantLayoutInfo& base = layout_info(layout_of_base(adapter));
  if (base.layout == QuantLayout::kNone) return {};
  if (saves_linear_layers(adapter))
    return fmt::format("it does not support modules_to_save over {}", base.peft_name);
  if (adapter.config.lora.dora && !base.peft_has_dora)
    return fmt::format("it does not support DoRA over {}", base.peft_name);
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
bool has_quantised_residual(const WrittenAdapter& adapter) {
  return adapter.uses_pissa && layout_of_base(adapter) != QuantLayout::kNone;
}

/// No file holds the base on which the adapter was trained.
bool is_approximate(const WrittenAdapter& adapter) {
  return has_quantised_residual(adapter) || has_unwritten_base(adapter);
}

std::string peft_line(const WrittenAdapter& adapter) {
  const std::string& name = adapter.config.base_model_name_or_path;
  if (has_unwritten_base(adapter))
    return fmt::format("PEFT: approximately, over the model that was quantised to {}: {}",
                       adapter.quantised_to, adapter.unwritten_because);
  if (has_quantised_residual(adapter))
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
  if (adapter.config.lora.dora && layout_of_base(adapter) == QuantLayout::kBitsandbytes4)
    line +=
        "; on a CPU with AVX512-BF16 for training only, because bitsandbytes 0.50 repacks the base "
        "for inference there, and PEFT's DoRA still assumes the old layout: use the unquantised "
        "model for inference";
  if (is_gguf(adapter.base))
    line += fmt::format(", over {}, from which {} was converted according to its metadata", name,
                        adapter.base.filename().string());
  if (!adapter.config.lora.target_parameters.empty()) line += ", with transformers 5 or newer";
  if (!adapter.arch.projectors.empty()) line += ", without its projectors of features";
  return line;
}

std::string merge_command(const WrittenAdapter& adapter, const std::string& options,
                          const char* suffix) {
  const std::string directory = adapter.directory.string();
  return fmt::format("`sftrun merge {}--adapter {} --output {}`", options, shell_word(directory),
                     shell_word(directory + suffix));
}

std::string vllm_line(const WrittenAdapter& adapter) {
  const spec::LoraSpec& lora = adapter.config.lora;
  if (const auto refusal =
          vllm_refusal(lora, !lora.modules_to_save.empty(), adapter.arch, adapter.is_adapted)) {
    if (!refusal->may_serve_merged) return fmt::format("vLLM: no ({})", refusal->what);
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
  else if (is_approximate(adapter))
    line = has_unwritten_base(adapter) ? "vLLM: approximately, over the same model"
                                       : "vLLM: approximately, over the unquantised model";
  else if (!adapter.quantised_to.empty())
    line += ", over the same base";
  else if (is_gguf(adapter.base))
    line += ", over " + (is_gguf(name) ? "the model that the file was converted from" : name);
  if (allowed > vllm_max_lora_rank({.r = 1}))
    line += fmt::format(", with --max-lora-rank {}", allowed);
  if (reading) line += fmt::format("; without conversion: {}", reading->what);
  return line;
}

std::string llama_cpp_refusal(const WrittenAdapter& adapter, const GgufLoraRefusal& refusal) {
  const std::string flags = refusal.merge_flags + " --dtype q8_0 ";
  return fmt::format(
      "llama.cpp: not as an adapter: {}; {}{}", refusal.what, refusal.fix,
      refusal.merge_flags.empty() ? "" : ": " + merge_command(adapter, flags, "-merged-gguf"));
}

std::string llama_cpp_line(const WrittenAdapter& adapter) {
  if (adapter.arch.score) return "llama.cpp: not the head of scores";
  try {
    if (const auto refusal = gguf_lora_refusal(adapter.config, adapter.directory,
                                               {adapter.base, adapter.arch, adapter.is_adapted}))
      return llama_cpp_refusal(adapter, *refusal);
  } catch (const DataError& error) {  // GGUF cannot express the model
    return fmt::format("llama.cpp: not as an adapter: {}; {}", error.message(), error.fix());
  }
  return fmt::format("llama.cpp: {}load the output of {} with {}",
                     is_approximate(adapter) ? "approximately, " : "",
                     merge_command(adapter, "--format lora-gguf ", "-gguf"),
                     is_gguf(adapter.base) ? adapter.base.string() : "the base as a GGUF file");
}

}  // namespace

std::vector<std::string> reader_support(const WrittenAdapter& adapter) {
  if (adapter.embeds) return {peft_line(adapter)};
  return {peft_line(adapter), vllm_line(adapter), llama_cpp_line(adapter)};
}

}  // namespace sftrun::weights
