#include <cstdlib>
#include <cstring>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "sftrun/core/error.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/gguf.h"

namespace sftrun::weights {
namespace {

#include "sftrun/weights/ggml_blocks.inl"

}  // namespace

void dequantize(const GgmlTypeInfo& type, const std::byte* blocks, int64_t count, float* out) {
  SFTRUN_CHECK(type.readable && count % type.block_size == 0);
  if (const auto plain = float_dtype(type.name))
    return convert(*plain, blocks, DType::kF32, reinterpret_cast<std::byte*>(out), count);
  ggml::decode(static_cast<GgmlType>(type.id), reinterpret_cast<const uint8_t*>(blocks), 0,
               count / ggml::kGroup, out);
}

}  // namespace sftrun::weights
