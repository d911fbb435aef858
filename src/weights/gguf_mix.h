#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/weights/gguf_export.h"

namespace sftrun::weights {

/// The file type, llama.cpp's "ftype", which determines the types of all tensors.
struct GgufMix {
  std::string_view name;       ///< "q4_k_m"
  std::string_view type_name;  ///< "Q4_K_M"
  uint32_t file_type = 0;      ///< general.file_type
  GgmlType type = GgmlType::kF32;
};
/// nullptr: no such file type.
const GgufMix* find_mix(std::string_view name);
const GgmlTypeInfo& info_of(GgmlType type);

/// The type of each piece. For f32, f16, bf16 and q8_0 as in convert_hf_to_gguf.py, for others as
/// in llama-quantize (src/llama-quant.cpp): more bits for the head and for v_proj and down_proj of
/// some layers; F32 for norms, biases and routers; another type if rows are not whole blocks.
std::vector<GgmlTypeInfo> choose_types(const GgufMix& mix, const spec::ArchSpec& arch,
                                       const std::vector<GgufPiece>& pieces);

/// `type`, or llama.cpp's replacement if the row size is not a multiple of its block size.
const GgmlTypeInfo& with_whole_blocks(GgmlType type, int64_t row_size);

}  // namespace sftrun::weights
