#pragma once

#include <cstdint>

#include "cuda/packed.h"
#include "cuda/types.h"
#include "sftrun/weights/ggml_type.h"

namespace sftrun::kernels::cuda {

/// y [tokens, rows of w] = x w^T for few tokens, x and y of dtype `type`. w's values are not
/// rounded to that dtype; sums are in fp32.
/// @pre w consists of whole groups of eight values; rows of x are aligned to 16 bytes
struct ThinProduct {
  Type type;
  const void* x;     ///< [tokens, columns of w]
  int64_t x_stride;  ///< row stride in elements
  int64_t tokens;
  void* y;
};
void launch_thin_product_4bit(const ThinProduct& product, const FourBitView& w,
                              const FourBitTables& tables, Stream stream);
void launch_thin_product_8bit(const ThinProduct& product, const EightBitView& w, Stream stream);
void launch_thin_product_fp8_blocks(const ThinProduct& product, const Fp8BlockView& w,
                                    Stream stream);
void launch_thin_product_int4_groups(const ThinProduct& product, const Int4GroupView& w,
                                     Stream stream);
void launch_thin_product_ggml(const ThinProduct& product, weights::GgmlType ggml_type,
                              const uint8_t* blocks, int64_t rows, int64_t columns, Stream stream);

}  // namespace sftrun::kernels::cuda
