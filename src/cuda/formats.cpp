#include <array>

#include "cuda/matrix_views.h"
#include "entries.h"
#include "launch_context.h"

/// Quantised matrices: dequantisation, thin products, codes of FP8.
namespace sftrun::kernels::plugin {

namespace {

/// The launches for the matrices of one format.
struct FormatLaunches {
  void (*dequantize)(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                     cuda::Type type, const cuda::ValueRows& to, cudaStream_t stream);
  void (*thin_product)(const cuda::ThinProduct& product, const QuantizedMatrix& w,
                       const cuda::FourBitTables& tables, cudaStream_t stream);
};

constexpr FormatLaunches kFourBits = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& tables, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_4bit(type, cuda::four_bit_view(matrix), tables, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& tables, cudaStream_t stream) {
          cuda::launch_thin_product(product, cuda::four_bit_view(w), tables, stream);
        }};
template <EightBits kForm>
constexpr FormatLaunches kEightBits = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_8bit(type, cuda::eight_bit_view(matrix, kForm), to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cudaStream_t stream) {
          cuda::launch_thin_product(product, cuda::eight_bit_view(w, kForm), stream);
        }};
constexpr FormatLaunches kGgml = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_ggml(type, matrix.ggml_type,
                                       matrix.packed.const_data_ptr<uint8_t>(), matrix.rows,
                                       matrix.columns, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cudaStream_t stream) {
          cuda::launch_thin_product(product, w.ggml_type, w.packed.const_data_ptr<uint8_t>(),
                                    w.rows, w.columns, stream);
        }};

const FormatLaunches& launches_of(QuantFormat format) {
  // In the order of the enumerators.
  static constexpr std::array<FormatLaunches, kQuantFormats.size()> kAll =
      std::to_array<FormatLaunches>({kFourBits, kFourBits, kEightBits<EightBits::kE4m3>,
                                     kEightBits<EightBits::kInt8>, kGgml});
  return kAll[static_cast<size_t>(format)];
}

}  // namespace

void dequantize(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                const at::Tensor& out) {
  const Launch launch(out);
  const cuda::ValueRows to{out.data_ptr(), out.stride(0)};
  launches_of(matrix.format).dequantize(matrix, tables, type_of(out), to, launch.stream());
  launch.check();
}

at::Tensor thin_product(const at::Tensor& x, const QuantizedMatrix& w,
                        const cuda::FourBitTables& tables) {
  at::Tensor y = at::empty({x.size(0), w.rows}, x.options());
  const cuda::ThinProduct product{.type = type_of(x),
                                  .x = x.const_data_ptr(),
                                  .x_stride = x.stride(0),
                                  .tokens = x.size(0),
                                  .y = y.data_ptr()};
  const Launch launch(x);
  launches_of(w.format).thin_product(product, w, tables, launch.stream());
  launch.check();
  return y;
}

void turn_codes(const at::Tensor& from, const at::Tensor& to) {
  const Launch launch(from);
  cuda::launch_turn_codes(from.const_data_ptr<uint8_t>(), to.data_ptr<uint8_t>(), from.size(0),
                          from.size(1), launch.stream());
  launch.check();
}

RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains) {
  const at::Tensor rows = x.contiguous();
  RoundedRows rounded{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
                      at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  const Launch launch(rows);
  cuda::launch_round_to_e4m3(
      type_of(rows), rows.data_ptr(), gains.defined() ? gains.const_data_ptr<float>() : nullptr,
      static_cast<uint8_t*>(rounded.codes.data_ptr()), rounded.scales.data_ptr<float>(), x.size(0),
      x.size(1), launch.stream());
  launch.check();
  return rounded;
}

}  // namespace sftrun::kernels::plugin
