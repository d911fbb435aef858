#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/weights/gguf_export.h"

namespace sftrun::weights {

/// How the tensors of a file are stored: llama.cpp's "ftype".
struct GgufMix {
  std::string_view name;       ///< "q4_k_m"
  std::string_view type_name;  ///< "Q4_K_M"
  uint32_t file_type = 0;      ///< general.file_type
  GgmlType type = GgmlType::kF32;
};
/// nullptr: there is none of this name.
const GgufMix* find_mix(std::string_view name);
const GgmlTypeInfo& info_of(GgmlType type);

/// The type of each piece: for f32, f16, bf16 and q8_0 as convert_hf_to_gguf.py chooses it, for
/// others as llama-quantize (src/llama-quant.cpp): more bits for the head and for some layers'
/// values and feed-forward ends, F32 for norms, biases and routers, and where rows are not whole
/// blocks the next type whose blocks they are.
std::vector<GgmlTypeInfo> choose_types(const GgufMix& mix, const spec::ArchSpec& arch,
                                       const std::vector<GgufPiece>& pieces);

/// `type`, or where the rows of a tensor are not its whole blocks what llama.cpp takes instead.
const GgmlTypeInfo& with_whole_blocks(GgmlType type, int64_t row_size);

}  // namespace sftrun::weights
