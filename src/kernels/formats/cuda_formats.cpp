#include "formats/cuda_formats.h"

#include <ATen/ATen.h>

#include "cuda/launch.h"
#include "cuda/matrix_views.h"
#include "experts/grouped_tiles_launch.h"
#include "matmul/thin_product_launch.h"
#include "quant/dequantize_launch.h"
#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_dequantize_4bit)> launch_dequantize_4bit(
    "launch_dequantize_4bit");
const CudaEntry<decltype(cuda::launch_dequantize_8bit)> launch_dequantize_8bit(
    "launch_dequantize_8bit");
const CudaEntry<decltype(cuda::launch_dequantize_fp8_blocks)> launch_dequantize_fp8_blocks(
    "launch_dequantize_fp8_blocks");
const CudaEntry<decltype(cuda::launch_dequantize_int4_groups)> launch_dequantize_int4_groups(
    "launch_dequantize_int4_groups");
const CudaEntry<decltype(cuda::launch_dequantize_ggml)> launch_dequantize_ggml(
    "launch_dequantize_ggml");
const CudaEntry<decltype(cuda::launch_thin_product_4bit)> launch_thin_product_4bit(
    "launch_thin_product_4bit");
const CudaEntry<decltype(cuda::launch_thin_product_8bit)> launch_thin_product_8bit(
    "launch_thin_product_8bit");
const CudaEntry<decltype(cuda::launch_thin_product_fp8_blocks)> launch_thin_product_fp8_blocks(
    "launch_thin_product_fp8_blocks");
const CudaEntry<decltype(cuda::launch_thin_product_int4_groups)> launch_thin_product_int4_groups(
    "launch_thin_product_int4_groups");
const CudaEntry<decltype(cuda::launch_thin_product_ggml)> launch_thin_product_ggml(
    "launch_thin_product_ggml");
const CudaEntry<decltype(cuda::launch_grouped_tiles_4bit)> launch_grouped_tiles_4bit(
    "launch_grouped_tiles_4bit");
const CudaEntry<decltype(cuda::launch_grouped_tiles_8bit)> launch_grouped_tiles_8bit(
    "launch_grouped_tiles_8bit");

template <EightBits kForm>
constexpr FormatLaunches kEightBits = {
    .has_whole_groups =
        [](const QuantizedMatrix& matrix) {
          return cuda::eight_bit_view(matrix, kForm).groups_are_whole();
        },
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cuda::Stream stream) {
          launch_dequantize_8bit(type, cuda::eight_bit_view(matrix, kForm), to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cuda::Stream stream) {
          launch_thin_product_8bit(product, cuda::eight_bit_view(w, kForm), stream);
        },
    .grouped_tiles =
        [](const cuda::GroupedTiles& tiles, const QuantizedMatrix& w, cuda::Type type,
           const cuda::FourBitTables& /*tables*/, cuda::Stream stream) {
          launch_grouped_tiles_8bit(type, tiles, cuda::eight_bit_view(w, kForm), stream);
        }};

const FormatLaunches& launches_of(const QuantizedMatrix& matrix) {
  SFTRUN_CHECK(ops_of(matrix).cuda != nullptr);  // `QuantizedMatrix::to` refuses others
  return *ops_of(matrix).cuda;
}

}  // namespace

constinit const FormatLaunches kFourBitLaunches = {
    .has_whole_groups =
        [](const QuantizedMatrix& matrix) {
          return cuda::four_bit_view(matrix).groups_are_whole();
        },
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& tables, cuda::Type type,
           const cuda::ValueRows& to, cuda::Stream stream) {
          launch_dequantize_4bit(type, cuda::four_bit_view(matrix), tables, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& tables, cuda::Stream stream) {
          launch_thin_product_4bit(product, cuda::four_bit_view(w), tables, stream);
        },
    .grouped_tiles =
        [](const cuda::GroupedTiles& tiles, const QuantizedMatrix& w, cuda::Type type,
           const cuda::FourBitTables& values, cuda::Stream stream) {
          launch_grouped_tiles_4bit(type, tiles, cuda::four_bit_view(w), values, stream);
        }};
constinit const FormatLaunches kE4m3Launches = kEightBits<EightBits::kE4m3>;
constinit const FormatLaunches kInt8Launches = kEightBits<EightBits::kInt8>;
constinit const FormatLaunches kFp8BlocksLaunches = {
    .has_whole_groups =
        [](const QuantizedMatrix& matrix) {
          return cuda::fp8_block_view(matrix).groups_are_whole();
        },
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cuda::Stream stream) {
          launch_dequantize_fp8_blocks(type, cuda::fp8_block_view(matrix), to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cuda::Stream stream) {
          launch_thin_product_fp8_blocks(product, cuda::fp8_block_view(w), stream);
        }};
constinit const FormatLaunches kInt4GroupsLaunches = {
    .has_whole_groups =
        [](const QuantizedMatrix& matrix) {
          return matrix.rows > 0 && cuda::int4_group_view(matrix).groups_are_whole();
        },
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cuda::Stream stream) {
          if (matrix.rows > 0)
            launch_dequantize_int4_groups(type, cuda::int4_group_view(matrix), to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cuda::Stream stream) {
          launch_thin_product_int4_groups(product, cuda::int4_group_view(w), stream);
        }};
constinit const FormatLaunches kGgmlLaunches = {
    .has_whole_groups = [](const QuantizedMatrix& /*matrix*/) { return true; },
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cuda::Stream stream) {
          launch_dequantize_ggml(type, matrix.ggml_type, matrix.packed.const_data_ptr<uint8_t>(),
                                 matrix.rows, matrix.columns, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cuda::Stream stream) {
          launch_thin_product_ggml(product, w.ggml_type, w.packed.const_data_ptr<uint8_t>(), w.rows,
                                   w.columns, stream);
        }};

void dequantize_on_cuda(const QuantizedMatrix& matrix, const at::Tensor& out) {
  const Launch launch(out);
  const cuda::ValueRows to{out.data_ptr(), out.stride(0)};
  launches_of(matrix).dequantize(matrix, cuda::four_bit_tables(matrix), cuda_type_of(out), to,
                                 launch.stream());
  launch.check();
}

at::Tensor thin_product_on_cuda(const at::Tensor& x, const QuantizedMatrix& w) {
  at::Tensor y = at::empty({x.size(0), w.rows}, x.options());
  const cuda::ThinProduct product{.type = cuda_type_of(x),
                                  .x = x.const_data_ptr(),
                                  .x_stride = x.stride(0),
                                  .tokens = x.size(0),
                                  .y = y.data_ptr()};
  const Launch launch(x);
  launches_of(w).thin_product(product, w, cuda::four_bit_tables(w), launch.stream());
  launch.check();
  return y;
}

bool decodes_in_grouped_products(const QuantizedMatrix& w) {
  const FormatLaunches& launches = launches_of(w);
  return launches.grouped_tiles != nullptr && launches.has_whole_groups(w);
}

void grouped_tiles_on_cuda(const cuda::GroupedTiles& tiles, const QuantizedMatrix& w,
                           const at::Tensor& y) {
  const Launch launch(y);
  launches_of(w).grouped_tiles(tiles, w, cuda_type_of(y), cuda::four_bit_tables(w),
                               launch.stream());
  launch.check();
}

}  // namespace sftrun::kernels
