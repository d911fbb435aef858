#pragma once

#include <cstdint>
#include <string_view>

namespace sftrun::weights {

/// Formats of tensor data, with the numbers used in GGUF files: all types whose size gguf-py
/// defines.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kMxfp4 = 39,
  kBF16 = 30,
};
struct GgmlTypeInfo {
  uint32_t id = 0;
  std::string_view name;   ///< "Q4_K"
  int64_t block_size = 1;  ///< values per block; rows are whole blocks
  int64_t block_bytes = 0;
  bool readable = false;  ///< `dequantize` supports it
};
/// nullptr for an unknown id.
const GgmlTypeInfo* ggml_type_info(uint32_t id);

}  // namespace sftrun::weights
