#include "sftrun/plan/quant_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {

std::string idle_quant_keys(const config::TuningConfig& tuning, bool keeps_stored) {
  const config::TuningConfig unset;
  const auto options = keeps_stored ? std::nullopt : tuning.quant_options();
  std::vector<std::string> keys;
  const auto add = [&](const char* key, bool is_set, bool has_effect) {
    if (is_set && !has_effect) keys.push_back(std::string("tuning.") + key);
  };
  const QuantFormatInfo* format = options ? &quant_info(options->format) : nullptr;
  const bool in_blocks = format != nullptr && format->has_blocks;
  add("double_quant", tuning.double_quant != unset.double_quant,
      format != nullptr && format->can_nest);
  add("quant_block_size", tuning.quant_block_size != unset.quant_block_size, in_blocks);
  add("quant_embeddings", tuning.quant_embeddings.has_value(),
      options || (keeps_stored && *tuning.quant_embeddings == false));
  add("skip_modules", !tuning.skip_modules.empty(), options || keeps_stored);
  if (keys.empty()) return {};
  const std::string reason = keeps_stored ? "the base keeps its stored format (tuning.quant)"
                             : !options   ? "the base is not quantised (tuning.quant)"
                             : in_blocks  ? tuning.quant_name() + " keeps its block scales in fp32"
                                          : tuning.quant_name() + " has one scale per row";
  return fmt::format("{} change{} nothing: {}", join(keys, ", "), keys.size() == 1 ? "s" : "",
                     reason);
}

void require_blocks(config::Quant quant, const std::set<std::string>& kinds,
                    const std::string& key) {
  const std::string leaf = key.substr(key.rfind('.') + 1);
  if (quant == config::Quant::kStored && !kinds.contains("stored"))
    throw ConfigError(
        fmt::format("`{}` is stored, but the model's files hold no quantised matrices", key), key,
        fmt::format("remove {}, or name a quantised model", leaf));
  const std::string kind = quant == config::Quant::kGguf    ? "gguf"
                           : quant == config::Quant::kMxfp4 ? "mxfp4"
                                                            : "stored";
  if (kinds.contains(kind)) return;
  throw ConfigError(
      fmt::format("`{}` is {}, but the model has no such blocks", key, kind), key,
      quant == config::Quant::kGguf
          ? fmt::format("name a quantised .gguf file, or remove {}", leaf)
          : fmt::format("name a model whose experts are in MXFP4, or remove {}", leaf));
}

void require_pissa_over(const config::TuningConfig& tuning, const spec::ArchSpec& arch,
                        const StoredBytes& stored, const std::set<std::string>& kinds) {
  if (tuning.lora.init != config::LoraInit::kPissa || !tuning.trains_adapter()) return;
  const auto* kept = std::ranges::find_if(kQuantFormats, [&](const QuantFormatInfo& info) {
    return !info.is_made && kinds.contains(std::string(info.name));
  });
  if (kept == kQuantFormats.end() || !keeps_stored(tuning, !stored.empty())) return;
  const spec::LoraSpec lora = lora_spec(tuning, arch);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      const std::string name = spec::name_in_layer(arch, layer, linear.module);
      if (!stored.contains(name + ".weight") || is_skipped(name, tuning)) continue;
      if (!spec::is_target(lora, name, linear, arch)) continue;
      throw ConfigError(
          fmt::format("PiSSA changes the base weights of {}, and a run cannot write {}", name,
                      kept->kept_name),
          "tuning.lora.init", "set tuning.quant to nf4 or none, or tuning.lora.init to default");
    }
  }
}

}  // namespace sftrun::plan
