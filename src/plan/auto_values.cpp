#include "sftrun/plan/auto_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::plan {
namespace {

/// Of one RoPE; nullopt: any number.
std::optional<int64_t> positions_of(const spec::RopeSpec& rope) {
  if (rope.type == spec::RopeType::kDynamic) return std::nullopt;
  const bool scales = rope.type == spec::RopeType::kLinear || rope.type == spec::RopeType::kYarn;
  if (!scales) return rope.max_position_embeddings;
  // config.json may name the positions before scaling (linear, Qwen's YaRN) or after it.
  const int64_t before = rope.original_max_position_embeddings > 0
                             ? rope.original_max_position_embeddings
                             : rope.max_position_embeddings;
  const auto after = static_cast<int64_t>(std::llround(rope.factor * static_cast<double>(before)));
  return std::max(rope.max_position_embeddings, after);
}

}  // namespace

bool cpu_multiplies_bf16() {
  return __builtin_cpu_supports("avx512bf16");
}

config::DTypeChoice resolved_dtype(config::DTypeChoice wanted, bool on_gpu,
                                   const std::string& setting) {
  if (wanted == config::DTypeChoice::kFp16 && !on_gpu) {
    throw ConfigError(
        "fp16 is not supported on a CPU", setting,
        setting == "train.fp16" ? "remove it, or set train.bf16 in its place" : "use bf16 or fp32");
  }
  if (wanted != config::DTypeChoice::kAuto) return wanted;
  return on_gpu || cpu_multiplies_bf16() ? config::DTypeChoice::kBf16 : config::DTypeChoice::kFp32;
}

config::Quant resolved_quant(const config::TuningConfig& tuning,
                             const std::set<std::string>& kinds) {
  if (tuning.quant != config::Quant::kAuto) return tuning.quant;
  if (!tuning.trains_adapter()) return config::Quant::kNone;
  if (kinds.contains("gguf")) return config::Quant::kGguf;
  if (kinds.contains("mxfp4")) return config::Quant::kMxfp4;
  if (kinds.contains("stored")) return config::Quant::kStored;
  return tuning.mode == config::TuningMode::kQlora ? config::quant_of(QuantFormat::kNf4)
                                                   : config::Quant::kNone;
}

std::optional<int64_t> num_positions(const spec::ArchSpec& arch) {
  std::optional<int64_t> fewest;
  for (const spec::LayerSpec& layer : arch.layers) {
    // A window's layer never sees far: what it was made for does not depend on the length.
    if (layer.rope < 0 || layer.window > 0 || layer.mixer != spec::Mixer::kAttention) continue;
    const auto positions = positions_of(arch.ropes.at(static_cast<size_t>(layer.rope)));
    if (positions) fewest = std::min(fewest.value_or(*positions), *positions);
  }
  return fewest;
}

std::string position_warning(const config::ModelConfig& model, const spec::ArchSpec& arch) {
  const auto positions = num_positions(arch);
  if (!positions || model.max_seq_len <= *positions) return {};
  return fmt::format(
      "model.max_seq_len {} is more than the model's {} positions: examples longer than {} tokens "
      "are trained at positions that the model has not seen; lower model.max_seq_len to {}",
      model.max_seq_len, *positions, *positions, *positions);
}

}  // namespace sftrun::plan
