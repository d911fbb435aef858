#include "few_rows_matmul.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "../parallel.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kLanes = 16, kMaxColumns = 256;  // of an item
constexpr int64_t kDepthAtOnce = 128;              // depth dequantised at once; even

/// T: dtype of the operands, U: dtype of the output. Sums do not depend on how the columns are
/// divided into items.
template <typename T, typename U>
class FewRowsProduct {
 public:
  FewRowsProduct(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output)
      : operands_(operands), output_(output) {}

  void run() const {
    const int64_t threads = at::get_num_threads(), of_thread = output_.num_columns / threads,
                  columns = std::clamp(of_thread / kLanes * kLanes, 4 * kLanes, kMaxColumns),
                  items = (output_.num_columns + columns - 1) / columns;
    parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
      const at::Tensor sums = at::empty({output_.num_rows, columns}, at::kFloat),
                       values = unpacked_values(columns);
      for (int64_t item = begin; item < end; ++item)
        multiply(item * columns, columns, sums.data_ptr<float>(), values);
    });
  }

 private:
  static const BlockKernels<T>& kernels() { return row_kernels<T>().matmul.blocks; }

  at::Tensor unpacked_values(int64_t columns) const {
    const int64_t size = any_quantized(operands_) ? kDepthAtOnce * columns : 0;
    return at::empty({size * static_cast<int64_t>(sizeof(T))}, at::kByte);
  }

  /// Columns [first, first + columns) of the output, or those that exist.
  void multiply(int64_t first, int64_t columns, float* sums, const at::Tensor& values) const {
    const int64_t valid = std::min(columns, output_.num_columns - first);
    bool add = false;
    for (const Operand<T>& o : operands_) {
      if (o.quantized != nullptr) {
        multiply_quantized(o, first, valid, add, sums, columns,
                           reinterpret_cast<T*>(values.data_ptr<uint8_t>()));
      } else {
        const T* w = o.transposed ? o.w + first * o.w_stride : o.w + first;
        multiply_part(o, 0, o.depth, w, o.w_stride, valid, add, sums, columns);
      }
      add = true;
    }
    output_.finish(sums, columns, 0, output_.num_rows, first, valid);
  }

  /// Dequantises in parts that stay in the L2 cache.
  void multiply_quantized(const Operand<T>& o, int64_t first, int64_t valid, bool add, float* sums,
                          int64_t width, T* values) const {
    for (int64_t k = 0; k < o.depth; k += kDepthAtOnce) {
      const int64_t depth = std::min(kDepthAtOnce, o.depth - k),
                    stride = dequantize_columns(o, first, valid, k, depth, values);
      multiply_part(o, k, depth, values, stride, valid, add || k > 0, sums, width);
    }
  }

  /// @param w at the part's first value
  void multiply_part(const Operand<T>& o, int64_t k, int64_t depth, const T* w, int64_t w_stride,
                     int64_t valid, bool add, float* sums, int64_t width) const {
    const auto run = o.transposed ? kernels().multiply_few_transposed : kernels().multiply_few;
    run(output_.num_rows, valid, depth, add, o.x + k, o.x_stride, w, w_stride, sums, width);
  }

  const std::vector<Operand<T>>& operands_;
  const ProductOutput<U>& output_;
};

}  // namespace

template <typename T, typename U>
void few_rows_matmul_sum(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output) {
  FewRowsProduct<T, U>(operands, output).run();
}
template void few_rows_matmul_sum(const std::vector<Operand<float>>&, const ProductOutput<float>&);
template void few_rows_matmul_sum(const std::vector<Operand<uint16_t>>&,
                                  const ProductOutput<float>&);
template void few_rows_matmul_sum(const std::vector<Operand<uint16_t>>&,
                                  const ProductOutput<uint16_t>&);

}  // namespace sftrun::kernels
