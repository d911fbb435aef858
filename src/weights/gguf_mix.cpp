#include "gguf_mix.h"

#include <algorithm>
#include <array>

#include "gguf_names.h"
#include "sftrun/core/error.h"
#include "sftrun/spec/gguf_description.h"

namespace sftrun::weights {
namespace {

constexpr std::array kMixes = {
    GgufMix{"f32", "F32", 0, GgmlType::kF32},
    GgufMix{"f16", "F16", 1, GgmlType::kF16},
    GgufMix{"bf16", "BF16", 32, GgmlType::kBF16},
    GgufMix{"q8_0", "Q8_0", 7, GgmlType::kQ8_0},
    GgufMix{"q6_k", "Q6_K", 18, GgmlType::kQ6_K},
    GgufMix{"q5_k_m", "Q5_K_M", 17, GgmlType::kQ5_K},
    GgufMix{"q4_k_m", "Q4_K_M", 15, GgmlType::kQ4_K},
    GgufMix{"q4_0", "Q4_0", 2, GgmlType::kQ4_0},
};

bool holds(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

/// Tensors that are F32 in every file type.
bool is_always_f32(const GgufPiece& piece) {
  return piece.shape.size() <= 1 || !piece.name.ends_with(".weight") ||
         piece.name.ends_with("_norm.weight") || holds(piece.name, "ffn_gate_inp") ||
         holds(piece.name, "ssm_conv1d");
}

/// Values, alone or fused with q and k: they are the most sensitive to quantisation.
bool is_of_values(const std::string& name) {
  return holds(name, "attn_v.weight") || holds(name, "attn_qkv.weight");
}

/// The first and last eighth of the layers, and every third one between.
bool gets_more_bits(int64_t layer, int64_t num_layers) {
  return layer < num_layers / 8 || layer >= 7 * num_layers / 8 || (layer - num_layers / 8) % 3 == 2;
}

/// Chooses types like llama-quantize, which processes layers in order and counts those it has seen.
class Quantizer {
 public:
  Quantizer(const GgufMix& mix, const spec::ArchSpec& arch, const std::vector<GgufPiece>& pieces)
      : mix_(mix), arch_(arch) {
    num_values_ = std::count_if(pieces.begin(), pieces.end(),
                                [](const GgufPiece& piece) { return is_of_values(piece.name); });
  }

  GgmlType type_of(const GgufPiece& piece) {
    const std::string& name = piece.name;
    const bool is_embedding = name == "token_embd.weight" || name == "per_layer_token_embd.weight";
    if (name == "output.weight" || (arch_.tie_word_embeddings && is_embedding))
      return type_of_head(piece);
    if (is_embedding) return mix_.type;
    if (is_of_values(name)) return type_of_values();
    if (holds(name, "attn_k.weight") && arch_.mixture.num_experts == 8) return GgmlType::kQ8_0;
    if (holds(name, "ffn_down")) return type_of_down(piece.layer);
    if (holds(name, "attn_output.weight") && arch_.mixture.num_experts == 8 &&
        mix_.type == GgmlType::kQ4_K)
      return GgmlType::kQ5_K;
    return mix_.type;
  }

 private:
  bool is_medium() const { return mix_.type == GgmlType::kQ4_K || mix_.type == GgmlType::kQ5_K; }

  GgmlType type_of_head(const GgufPiece& piece) const {
    if (piece.row_size % info_of(mix_.type).block_size != 0) return GgmlType::kQ8_0;
    return mix_.type == GgmlType::kQ8_0 ? GgmlType::kQ8_0 : GgmlType::kQ6_K;
  }

  GgmlType type_of_values() {
    const int64_t seen = seen_values_++;
    if (arch_.mixture.num_experts == 8) return GgmlType::kQ8_0;
    if (is_medium() && gets_more_bits(seen, num_values_)) return GgmlType::kQ6_K;
    return spec::gguf_is_70b(arch_) && mix_.type == GgmlType::kQ4_K ? GgmlType::kQ5_K : mix_.type;
  }

  GgmlType type_of_down(int64_t layer) {
    const int64_t seen = seen_downs_++;
    const int64_t place = arch_.mixture.num_experts > 1 ? layer : seen;
    return is_medium() && gets_more_bits(place, arch_.num_layers) ? GgmlType::kQ6_K : mix_.type;
  }

  const GgufMix& mix_;
  const spec::ArchSpec& arch_;
  int64_t num_values_ = 0, seen_values_ = 0, seen_downs_ = 0;
};

/// Small, and used by every layer: not quantised.
bool is_left_as_it_is(const GgufPiece& piece) {
  return holds(piece.name, "per_layer_model_proj");
}

}  // namespace

const GgufMix* find_mix(std::string_view name) {
  const auto found = std::find_if(kMixes.begin(), kMixes.end(),
                                  [&](const GgufMix& mix) { return mix.name == name; });
  return found == kMixes.end() ? nullptr : &*found;
}

std::vector<std::string> gguf_mixes() {
  std::vector<std::string> names;
  for (const GgufMix& mix : kMixes) names.emplace_back(mix.name);
  return names;
}

const GgmlTypeInfo& info_of(GgmlType type) {
  const GgmlTypeInfo* info = ggml_type_info(static_cast<uint32_t>(type));
  SFTRUN_CHECK(info != nullptr);
  return *info;
}

const GgmlTypeInfo& with_whole_blocks(GgmlType type, int64_t row_size) {
  const auto fits = [&](GgmlType candidate) {
    return row_size % info_of(candidate).block_size == 0;
  };
  if (fits(type)) return info_of(type);
  if (type == GgmlType::kQ4_K) type = GgmlType::kQ5_0;
  if (type == GgmlType::kQ5_K) type = GgmlType::kQ5_1;
  if (type == GgmlType::kQ6_K) type = GgmlType::kQ8_0;
  return info_of(fits(type) ? type : GgmlType::kF16);
}

std::vector<GgmlTypeInfo> choose_types(const GgufMix& mix, const spec::ArchSpec& arch,
                                       const std::vector<GgufPiece>& pieces) {
  const bool is_converted = info_of(mix.type).block_size == 1 || mix.type == GgmlType::kQ8_0;
  Quantizer quantizer(mix, arch, pieces);
  std::vector<GgmlTypeInfo> types;
  for (const GgufPiece& piece : pieces) {
    GgmlType type = mix.type;
    if (is_always_f32(piece)) {
      type = GgmlType::kF32;
    } else if (!is_converted) {
      type = is_left_as_it_is(piece) ? GgmlType::kBF16 : quantizer.type_of(piece);
    }
    types.push_back(with_whole_blocks(type, piece.row_size));
  }
  return types;
}

UnquantisedMatrices unquantised_matrices(const std::string& name,
                                         const std::vector<GgufPiece>& pieces,
                                         const std::vector<GgmlTypeInfo>& types) {
  UnquantisedMatrices found;
  const GgufMix* mix = find_mix(name);
  if (mix == nullptr || info_of(mix->type).block_size == 1) return found;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool is_f16 = types[i].id == static_cast<uint32_t>(GgmlType::kF16);
    if (!is_f16 && types[i].block_size == 1) continue;  // a norm, or left as it is
    ++found.num_matrices;
    if (!is_f16) continue;
    if (found.count++ > 0) continue;
    found.first = pieces[i].name;
    found.row_size = pieces[i].row_size;
  }
  return found;
}

}  // namespace sftrun::weights
