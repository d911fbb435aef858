#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "formats/format_ops.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/quant.h"

/// Checks of operands at the entry points, for all devices: kernels read raw memory.
namespace sftrun::kernels {

inline void require_contiguous(const at::Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "an operand of a kernel is not contiguous: sizes ", x.sizes(),
              ", strides ", x.strides());
}

/// Contiguous, of this dtype, on the device of `like`.
inline void require_operand(const at::Tensor& x, const at::Tensor& like, at::ScalarType dtype) {
  TORCH_CHECK(x.device() == like.device(), "operands on ", x.device(), " and ", like.device());
  TORCH_CHECK(x.scalar_type() == dtype, "an operand is ", x.scalar_type(), ", not ", dtype);
  require_contiguous(x);
}

/// As require_operand, with the shape and dtype of `like`.
inline void require_same(const at::Tensor& x, const at::Tensor& like) {
  TORCH_CHECK(x.sizes() == like.sizes(), "operands of shapes ", x.sizes(), " and ", like.sizes());
  require_operand(x, like, like.scalar_type());
}

/// Any shape with this number of elements.
inline void require_numel(const at::Tensor& x, int64_t numel) {
  TORCH_CHECK(x.numel() == numel, "an operand of shape ", x.sizes(), " in place of ", numel,
              " elements");
}

/// The bytes of an `UpdateGate` on the device of `like`.
inline void require_gate(const at::Tensor& gate, const at::Tensor& like) {
  require_operand(gate, like, at::kByte);
  require_numel(gate, static_cast<int64_t>(sizeof(UpdateGate)));
}

/// Contiguous [tokens, channels].
inline void require_rows(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "an operand of shape ", x.sizes(), " in place of [tokens, channels]");
  require_contiguous(x);
}

/// [tokens, channels]; on CUDA the row stride may exceed the row length.
inline void require_loose_rows(const at::Tensor& x) {
  if (!x.is_cuda()) return require_rows(x);
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1, "an operand of sizes ", x.sizes(), ", strides ",
              x.strides(), " in place of [tokens, channels]");
}

/// Shape, dtype and device of `like`; on CUDA the row stride may exceed the row length.
inline void require_loose_same(const at::Tensor& x, const at::Tensor& like) {
  require_loose_rows(x);
  TORCH_CHECK(x.sizes() == like.sizes() && x.device() == like.device() &&
                  x.scalar_type() == like.scalar_type(),
              "operands of shapes ", x.sizes(), " and ", like.sizes(), ", ", x.scalar_type(),
              " and ", like.scalar_type(), ", on ", x.device(), " and ", like.device());
}

/// For options that only the CUDA kernels support.
inline void require_on_cuda(const at::Tensor& x) {
  TORCH_CHECK(x.is_cuda(), "an operand on ", x.device(), " of an operation that only CUDA has");
}

/// Checks sizes, dtypes and device of a quantised matrix' tensors.
inline void require_quantized(const QuantizedMatrix& matrix, at::Device device) {
  TORCH_CHECK(matrix.packed.device() == device, "operands on ", device, " and ",
              matrix.packed.device());
  require_operand(matrix.packed, matrix.packed, at::kByte);
  if (matrix.absmax.defined()) require_operand(matrix.absmax, matrix.packed, at::kFloat);
  if (matrix.is_nested()) {
    require_operand(matrix.codes, matrix.packed, at::kByte);
    require_operand(matrix.nested_absmax, matrix.packed, at::kFloat);
  }
  ops_of(matrix).require_sizes(matrix);
}
inline void require_quantized(const QuantizedMatrix& matrix) {
  require_quantized(matrix, matrix.packed.device());
}

/// Checks that `to` can receive the dequantised matrix; on CUDA its row stride may exceed the row
/// length.
inline void require_room_for(const QuantizedMatrix& matrix, const at::Tensor& to) {
  require_loose_rows(to);
  TORCH_CHECK(to.device() == matrix.packed.device(), "operands on ", to.device(), " and ",
              matrix.packed.device());
  TORCH_CHECK(at::isFloatingType(to.scalar_type()) && to.element_size() >= 2, "an operand is ",
              to.scalar_type(), ", expected a floating-point type of 2 or more bytes");
  TORCH_CHECK(to.dim() == 2 && to.size(0) == matrix.rows && to.size(1) == matrix.columns,
              "an operand of shape ", to.sizes(), " in place of [", matrix.rows, ", ",
              matrix.columns, "]");
}

}  // namespace sftrun::kernels
