#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../formats/format_ops.h"
#include "../operands.h"
#include "../parallel.h"
#include "cuda/launch.h"
#include "formats/cuda_formats.h"
#include "quant/dequantize_launch.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/kernels/quant.h"

/// Compiled with -ffp-contract=off: values are bit-equal to the references'.
namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_transpose_codes)> launch_transpose_codes(
    "launch_transpose_codes");

constexpr int64_t kStreamed = 16 << 20;  // bytes: more than the caches still hold when it is read

/// Store fence after non-temporal stores, so that other threads see the data.
void end_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// Dequantises rows with non-temporal stores through a buffer in the L1 cache: an ordinary store
/// would first read the cache line that it overwrites.
template <typename T>
void stream_rows(const QuantizedMatrix& matrix, int64_t row, int64_t rows, T* out) {
  constexpr int64_t kPart = 2048;  // values; a multiple of ggml's block sizes
  alignas(64) std::array<T, kPart> part;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t column = 0; column < matrix.columns; column += kPart) {
      const int64_t count = std::min(kPart, matrix.columns - column);
      dequantize_part<T>(matrix, row + i, 1, column, count, part.data(), count);
      cpu_kernels().stream_copy(out + i * matrix.columns + column, part.data(),
                                static_cast<size_t>(count) * sizeof(T));
    }
  }
  end_stream();
}

template <typename T>
void write_rows(const QuantizedMatrix& matrix, int64_t first, const at::Tensor& out) {
  constexpr int64_t kGrain = 4096;  // minimum number of values per thread
  auto* values = static_cast<T*>(out.data_ptr());
  // For 2-byte outputs ordinary stores are faster in every format (bench/RESULTS.md).
  const bool is_streamed =
      std::is_same_v<T, float> && static_cast<int64_t>(out.nbytes()) >= kStreamed;
  parallel_for(0, out.size(0), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, matrix.columns)),
               [&](int64_t begin, int64_t end) {
                 T* to = values + begin * matrix.columns;
                 if (is_streamed) return stream_rows(matrix, first + begin, end - begin, to);
                 dequantize_part<T>(matrix, first + begin, end - begin, 0, matrix.columns, to,
                                    matrix.columns);
               });
}

/// Dequantises rows [first, first + rows of `out`).
void write_rows(const QuantizedMatrix& matrix, int64_t first, const at::Tensor& out) {
  SFTRUN_CHECK(matrix.packed.is_cpu());
  const at::NoGradGuard no_grad;
  if (out.scalar_type() == at::kBFloat16) return write_rows<uint16_t>(matrix, first, out);
  if (out.scalar_type() == at::kFloat) return write_rows<float>(matrix, first, out);
  at::Tensor wide = at::empty(out.sizes(), at::kFloat);
  write_rows<float>(matrix, first, wide);
  out.copy_(wide);
}

}  // namespace

template <typename T>
void dequantize_part(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                     int64_t columns, T* out, int64_t stride) {
  const FormatOps& ops = ops_of(matrix);
  if constexpr (std::is_same_v<T, float>)
    ops.unpack_fp32(matrix, row, rows, column, columns, out, stride);
  else
    ops.unpack_bf16(matrix, row, rows, column, columns, out, stride);
}
template void dequantize_part<float>(const QuantizedMatrix&, int64_t, int64_t, int64_t, int64_t,
                                     float*, int64_t);
template void dequantize_part<uint16_t>(const QuantizedMatrix&, int64_t, int64_t, int64_t, int64_t,
                                        uint16_t*, int64_t);

at::Tensor dequantize(const QuantizedMatrix& matrix, at::ScalarType dtype) {
  const at::Tensor out =
      at::empty({matrix.rows, matrix.columns}, matrix.packed.options().dtype(dtype));
  dequantize_into(matrix, out);
  return out;
}

void dequantize_into(const QuantizedMatrix& matrix, const at::Tensor& out) {
  const ProfileRange range("dequantize_into");
  require_quantized(matrix);
  require_room_for(matrix, out);
  if (matrix.packed.is_cuda()) return dequantize_on_cuda(matrix, out);
  write_rows(matrix, 0, out);
}

void transpose_codes_into(const QuantizedMatrix& matrix, const at::Tensor& out) {
  const ProfileRange range("transpose_codes_into");
  require_quantized(matrix);
  require_on_cuda(matrix.packed);
  require_operand(out, matrix.packed, at::kByte);
  TORCH_CHECK(matrix.info().bits == 8 && out.dim() == 2 && out.size(0) == matrix.columns &&
                  out.size(1) == matrix.rows,
              "codes of ", matrix.rows, " x ", matrix.columns, " transposed into ", out.sizes());
  const at::Tensor& from = matrix.packed;
  const Launch launch(from);
  launch_transpose_codes(from.const_data_ptr<uint8_t>(), out.data_ptr<uint8_t>(), matrix.rows,
                         matrix.columns, launch.stream());
  launch.check();
}

at::Tensor dequantize_range(const QuantizedMatrix& matrix, int64_t first, int64_t count,
                            at::ScalarType dtype) {
  at::Tensor out = at::empty({count, matrix.columns}, at::TensorOptions().dtype(dtype));
  write_rows(matrix, first, out);
  return out;
}

at::Tensor dequantize_rows(const QuantizedMatrix& matrix, const at::Tensor& rows,
                           at::ScalarType dtype) {
  const ProfileRange range("dequantize_rows");
  const at::NoGradGuard no_grad;
  if (matrix.splits_at(1)) return dequantize(ops_of(matrix).select_rows(matrix, rows), dtype);
  if (!matrix.packed.is_cpu()) return dequantize(matrix, dtype).index_select(0, rows);
  const at::Tensor indices = rows.to(at::kLong).contiguous();
  at::Tensor out = at::empty({rows.numel(), matrix.columns}, at::kFloat);
  const auto* row = indices.const_data_ptr<int64_t>();
  parallel_for(0, rows.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      dequantize_part<float>(matrix, row[i], 1, 0, matrix.columns,
                             out.data_ptr<float>() + i * matrix.columns, matrix.columns);
  });
  return out.to(dtype);
}

}  // namespace sftrun::kernels
