#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/quant.h"

/// What entry points require of their operands, before it is decided which device computes: kernels
/// read raw memory, on a CPU as on CUDA.
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

/// And of its shape and dtype.
inline void require_same(const at::Tensor& x, const at::Tensor& like) {
  TORCH_CHECK(x.sizes() == like.sizes(), "operands of shapes ", x.sizes(), " and ", like.sizes());
  require_operand(x, like, like.scalar_type());
}

/// Of any shape with so many elements.
inline void require_numel(const at::Tensor& x, int64_t numel) {
  TORCH_CHECK(x.numel() == numel, "an operand of shape ", x.sizes(), " in place of ", numel,
              " elements");
}

/// The bytes of an `UpdateGate`, on the device of `like`.
inline void require_gate(const at::Tensor& gate, const at::Tensor& like) {
  require_operand(gate, like, at::kByte);
  require_numel(gate, static_cast<int64_t>(sizeof(UpdateGate)));
}

/// x as [tokens, channels].
inline void require_rows(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "an operand of shape ", x.sizes(), " in place of [tokens, channels]");
  require_contiguous(x);
}

/// The same; on CUDA rows may lie further apart than they are long.
inline void require_loose_rows(const at::Tensor& x) {
  if (!x.is_cuda()) return require_rows(x);
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1, "an operand of sizes ", x.sizes(), ", strides ",
              x.strides(), " in place of [tokens, channels]");
}

/// Of the shape, dtype and device of `like`; on CUDA rows may lie further apart than they are long.
inline void require_loose_same(const at::Tensor& x, const at::Tensor& like) {
  require_loose_rows(x);
  TORCH_CHECK(x.sizes() == like.sizes() && x.device() == like.device() &&
                  x.scalar_type() == like.scalar_type(),
              "operands of shapes ", x.sizes(), " and ", like.sizes(), ", ", x.scalar_type(),
              " and ", like.scalar_type(), ", on ", x.device(), " and ", like.device());
}

/// For what CPU kernels do not do.
inline void require_on_cuda(const at::Tensor& x) {
  TORCH_CHECK(x.is_cuda(), "an operand on ", x.device(), " of what is done on CUDA alone");
}

/// Whether a matrix has the bytes and factors that its shape asks for, all on `device`.
inline void require_quantized(const QuantizedMatrix& matrix, at::Device device) {
  TORCH_CHECK(matrix.packed.device() == device, "operands on ", device, " and ",
              matrix.packed.device());
  require_operand(matrix.packed, matrix.packed, at::kByte);
  if (matrix.absmax.defined()) require_operand(matrix.absmax, matrix.packed, at::kFloat);
  if (matrix.is_nested()) {
    require_operand(matrix.codes, matrix.packed, at::kByte);
    require_operand(matrix.nested_absmax, matrix.packed, at::kFloat);
  }
  if (is_4bit(matrix.format)) {
    require_numel(matrix.packed, (matrix.numel() + 1) / 2);
    require_numel(matrix.is_nested() ? matrix.codes : matrix.absmax, matrix.num_blocks());
  } else if (is_8bit(matrix.format)) {
    require_numel(matrix.packed, matrix.numel());
    if (matrix.absmax.defined()) require_numel(matrix.absmax, matrix.rows);
  }
}
inline void require_quantized(const QuantizedMatrix& matrix) {
  require_quantized(matrix, matrix.packed.device());
}

/// Whether a matrix' values have their place in `to`; on CUDA its rows may lie further apart than
/// they are long.
inline void require_room_for(const QuantizedMatrix& matrix, const at::Tensor& to) {
  require_loose_rows(to);
  TORCH_CHECK(to.device() == matrix.packed.device(), "operands on ", to.device(), " and ",
              matrix.packed.device());
  TORCH_CHECK(at::isFloatingType(to.scalar_type()) && to.element_size() >= 2, "an operand is ",
              to.scalar_type(), ", in which weights are not held");
  TORCH_CHECK(to.dim() == 2 && to.size(0) == matrix.rows && to.size(1) == matrix.columns,
              "an operand of shape ", to.sizes(), " in place of [", matrix.rows, ", ",
              matrix.columns, "]");
}

}  // namespace sftrun::kernels
