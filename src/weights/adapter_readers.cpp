#include "sftrun/weights/adapter_readers.h"

#include <algorithm>
#include <array>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/gguf_lora.h"
#include "sftrun/weights/vllm_adapter.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

bool is_gguf(const fs::path& path) {
  return ascii_lower(path.extension().string()) == ".gguf";
}

std::string peft_line(const WrittenAdapter& adapter) {
  const std::string& name = adapter.config.base_model_name_or_path;
  if (is_gguf(name)) {
    return fmt::format(
        "PEFT: over the model that {} was converted from, which the file does not name: write that "
        "model's name into {} as base_model_name_or_path",
        fs::path(name).filename().string(), (adapter.directory / "adapter_config.json").string());
  }
  std::string line = "PEFT: as it is";
  if (is_gguf(adapter.base))
    line += fmt::format(", over {}, of which {} says it was converted", name,
                        adapter.base.filename().string());
  if (!adapter.config.target_parameters.empty()) line += ", with transformers 5 or newer";
  return line;
}

/// The least --max-lora-rank of vLLM's (its default is 16) that takes `rank`; 0: none does.
int64_t max_lora_rank(int64_t rank) {
  static constexpr std::array<int64_t, 7> kRanks = {16, 32, 64, 128, 256, 320, 512};
  const auto* found = std::lower_bound(kRanks.begin(), kRanks.end(), rank);
  return found == kRanks.end() ? 0 : *found;
}

int64_t largest_rank(const AdapterConfig& config) {
  double largest = static_cast<double>(config.r);
  for (const auto& [name, r] : config.rank_pattern) largest = std::max(largest, r);
  return static_cast<int64_t>(largest);
}

std::string merge_command(const WrittenAdapter& adapter, const char* options, const char* suffix) {
  return fmt::format("`sftrun merge {}--adapter {} --output {}{}`", options,
                     adapter.directory.string(), adapter.directory.string(), suffix);
}

std::string vllm_line(const WrittenAdapter& adapter) {
  const AdapterConfig& config = adapter.config;
  const int64_t rank = largest_rank(config), allowed = max_lora_rank(rank);
  const auto merged = [&](const std::string& why) {
    return fmt::format("vLLM: not as an adapter ({}): serve what {} writes", why,
                       merge_command(adapter, "", "-merged"));
  };
  if (config.use_dora) return merged("magnitudes of DoRA");
  if (!config.modules_to_save.empty()) return merged("whole modules");
  for (const std::string& module :
       {spec::embedding_module(adapter.arch), std::string(spec::kHeadModule)})
    if (adapter.is_adapted(module))
      return merged(fmt::format("an update of {}, which most families refuse there", module));
  if (allowed == 0) return merged(fmt::format("a rank of {}", rank));
  const auto reading = vllm_reading(adapter.arch, adapter.is_adapted);
  std::string line = reading ? fmt::format("vLLM: what {} writes",
                                           merge_command(adapter, "--format vllm ", "-vllm"))
                             : "vLLM: as it is";
  if (allowed > max_lora_rank(1)) line += fmt::format(", with --max-lora-rank {}", allowed);
  if (reading) line += fmt::format("; as it is {}", reading->what);
  return line;
}

std::string llama_cpp_line(const WrittenAdapter& adapter) {
  try {
    require_gguf_lora(adapter.config, adapter.directory,
                      {adapter.base, adapter.arch, adapter.is_adapted});
  } catch (const DataError& error) {
    return fmt::format("llama.cpp: not as an adapter: {}; {}", error.message(), error.fix());
  }
  return fmt::format("llama.cpp: what {} writes",
                     merge_command(adapter, "--format lora-gguf ", "-gguf"));
}

}  // namespace

std::vector<std::string> where_it_loads(const WrittenAdapter& adapter) {
  return {peft_line(adapter), vllm_line(adapter), llama_cpp_line(adapter)};
}

}  // namespace sftrun::weights
