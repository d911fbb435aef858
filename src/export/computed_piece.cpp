#include "computed_piece.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/weights/gguf_quantize.h"

namespace sftrun::exporting {
namespace {

/// Blocks have no codes for anything else.   @param values fp32, contiguous
void require_finite(const std::string& name, const at::Tensor& values) {
  if (all_finite({values.const_data_ptr<float>(), static_cast<size_t>(values.numel())})) return;
  throw DataError(fmt::format("the merged tensor `{}` has NaN or infinite values", name), {},
                  "the base, or the adapter's training, is broken: look at the run's losses");
}

/// Rows by rows on all threads: each quantises whole rows.
void quantize_piece(const weights::GgufPiece& piece, const weights::GgmlTypeInfo& type,
                    const at::Tensor& source, std::byte* destination) {
  constexpr int64_t kNumbersAtATime = 1 << 16;
  const int64_t row_size = piece.row_size,
                row_bytes = row_size / type.block_size * type.block_bytes,
                grain = std::max<int64_t>(1, kNumbersAtATime / std::max<int64_t>(1, row_size));
  at::parallel_for(0, piece.num_rows(), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>(std::min(grain, end - begin) * row_size));
    for (int64_t row = begin; row < end; row += grain) {
      const int64_t count = std::min(grain, end - row);
      weights::fill_rows(piece, source.const_data_ptr<float>(), row, count, rows.data());
      weights::quantize(type, rows.data(), count * row_size, destination + row * row_bytes);
    }
  });
}

}  // namespace

weights::GgufTensorToWrite computed_piece(const weights::GgufPiece& piece,
                                          const weights::GgmlTypeInfo& type,
                                          const std::string& name,
                                          const std::function<at::Tensor()>& values,
                                          bool may_be_infinite) {
  return {piece.name, piece.shape, type,
          [&piece, type, name, values, may_be_infinite](std::byte* destination) {
            const at::Tensor computed_values = values();
            if (!may_be_infinite) require_finite(name, computed_values);
            quantize_piece(piece, type, computed_values, destination);
          }};
}

}  // namespace sftrun::exporting
