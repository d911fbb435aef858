#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "sftrun/kernels/quant.h"
#include "sftrun/kernels/routes.h"

/// Grouped matrix products: the rows of each expert times its matrix.
namespace sftrun::kernels {

/// Sorts the chosen experts of all tokens. On CUDA one launch, without synchronisation.
/// @param chosen [T, top_k] expert indices, int64 or int32
Routes routes_of(const at::Tensor& chosen, int64_t num_experts);

/// A matrix of all experts, dense or quantised.
struct ExpertStack {
  at::Tensor dense;  ///< [experts, rows, columns]; undefined where `quantized` is not null
  const QuantizedMatrix* quantized = nullptr;  ///< [experts * rows, columns]
  int64_t experts = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is an expert stack
  ExpertStack(at::Tensor matrices) : dense(std::move(matrices)), experts(dense.size(0)) {}
  ExpertStack(const QuantizedMatrix& matrices, int64_t num_experts)
      : quantized(&matrices), experts(num_experts) {}

  int64_t rows() const { return quantized ? quantized->rows / experts : dense.size(1); }
  int64_t columns() const { return quantized ? quantized->columns : dense.size(2); }
  /// Matrix of one expert; dense ones are returned unchanged, whatever `dtype`.
  at::Tensor values(int64_t expert, at::ScalarType dtype) const;
};

/// A dense product beside another one: that of an adapter.
struct GroupedBeside {
  at::Tensor x;  ///< [T', R]; undefined: nothing
  at::Tensor w;  ///< [experts, N, R] (`transposed`) or [experts, R, N]
};

/// x [T', K], rows sorted by expert, times each expert's matrix: x_e w_e^T with w [experts, N, K]
/// (`transposed`), or x_e w_e with w [experts, K, N], plus the same of `beside`. Returns [T', N]. On
/// CUDA, in bf16 and fp16, codes of 4 and 8 bits are decoded within the product.
at::Tensor grouped_matmul(const at::Tensor& x, const ExpertStack& w, bool transposed,
                          const Routes& routes, const GroupedBeside& beside = {});
/// out [experts, N, K] fp32 += g_e^T x_e.
void add_grouped_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                            const Routes& routes);

/// The same in bf16 through LibTorch's grouped product. Dimensions are padded so that rows are
/// multiples of 16 bytes. One launch on sm_90 and sm_100; elsewhere LibTorch does one per matrix.
/// @param ends [experts] int32 on the device of x: end row of each expert
at::Tensor grouped_matmul_at_once(const at::Tensor& x, const at::Tensor& w, bool transposed,
                                  const at::Tensor& ends);

/// [experts, N, K] bf16: g_e^T x_e; undefined values for an expert without rows. The row stride of
/// the result may exceed its row length.
at::Tensor grouped_matmul_tn_at_once(const at::Tensor& g, const at::Tensor& x,
                                     const at::Tensor& ends);

}  // namespace sftrun::kernels
