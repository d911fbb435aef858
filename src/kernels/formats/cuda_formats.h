#pragma once

#include <ATen/core/Tensor.h>

#include "../cuda/types.h"
#include "sftrun/kernels/quant.h"

/// The CUDA kernels of each format, for operands that the caller has checked.
namespace sftrun::kernels {

namespace cuda {
struct FourBitTables;
struct GroupedTiles;
struct ThinProduct;
struct ValueRows;
}  // namespace cuda

/// The launches for the matrices of one format, which its `FormatOps` names.
struct FormatLaunches {
  /// Whether rows are whole groups, so that the kernel of `thin_product` can decode them.
  bool (*has_whole_groups)(const QuantizedMatrix& matrix);
  void (*dequantize)(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                     cuda::Type type, const cuda::ValueRows& to, cuda::Stream stream);
  /// @pre has_whole_groups(w)
  void (*thin_product)(const cuda::ThinProduct& product, const QuantizedMatrix& w,
                       const cuda::FourBitTables& tables, cuda::Stream stream);
  /// Grouped products whose kernel decodes the codes; null: the matrices are dequantised first.
  /// @pre has_whole_groups(w)
  void (*grouped_tiles)(const cuda::GroupedTiles& tiles, const QuantizedMatrix& w, cuda::Type type,
                        const cuda::FourBitTables& tables, cuda::Stream stream) = nullptr;
};
extern const FormatLaunches kFourBitLaunches, kE4m3Launches, kInt8Launches, kFp8BlocksLaunches,
    kInt4GroupsLaunches, kGgmlLaunches;

/// @param out [rows, columns], with loose rows
void dequantize_on_cuda(const QuantizedMatrix& matrix, const at::Tensor& out);
/// x w^T for an x of few rows.   @pre cuda::thin_product_serves
at::Tensor thin_product_on_cuda(const at::Tensor& x, const QuantizedMatrix& w);
/// Whether the kernel of grouped products decodes this matrix itself.
bool decodes_in_grouped_products(const QuantizedMatrix& w);
/// @pre decodes_in_grouped_products(w), and cuda::tiles_serve
void grouped_tiles_on_cuda(const cuda::GroupedTiles& tiles, const QuantizedMatrix& w,
                           const at::Tensor& y);

}  // namespace sftrun::kernels
