#include "sftrun/kernels/fp8_product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_mm.h>

#include <vector>

#include "../operands.h"
#include "../parallel.h"
#include "../row_kernels.h"
#include "cuda/launch.h"
#include "quant/dequantize_launch.h"
#include "sftrun/core/error.h"
#include "tiled_matmul.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_round_to_e4m3)> launch_round_to_e4m3("launch_round_to_e4m3");

/// Rounds one row to e4m3; returns its scale.
template <typename T, typename Code>
using RoundRow = float (*)(const T* x, const float* gains, int64_t n, Code* codes);

template <typename T, typename Code>
void round_rows(RoundRow<T, Code> round, const at::Tensor& x, const float* gains,
                const RoundedRows& rounded) {
  const int64_t n = x.size(1), stride = x.stride(0);
  const auto* from = static_cast<const T*>(x.const_data_ptr());
  auto* to = static_cast<Code*>(rounded.codes.data_ptr());
  auto* scale = rounded.scales.data_ptr<float>();
  parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) scale[r] = round(from + r * stride, gains, n, to + r * n);
  });
}

/// Codes are stored in bf16, which represents them exactly, wherever bf16 products are supported:
/// with the same sums as fp32 in half the memory, and with AVX512_BF16 at least twice as fast. There
/// are no fp16 products on CPU.
RoundedRows round_on_cpu(const at::Tensor& x, const at::Tensor& gains) {
  const bool in_fp32 = x.scalar_type() == at::kFloat,
             as_fp32 = in_fp32 && !tiled_matmul_serves(at::kBFloat16, x.size(0), x.size(1));
  RoundedRows rounded{at::empty(x.sizes(), x.options().dtype(as_fp32 ? at::kFloat : at::kBFloat16)),
                      at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  const float* gain = gains.defined() ? gains.const_data_ptr<float>() : nullptr;
  if (as_fp32)
    round_rows(row_kernels<float>().round_row_e4m3, x, gain, rounded);
  else if (in_fp32)
    round_rows(row_kernels<float>().round_row_e4m3_to_bf16, x, gain, rounded);
  else
    round_rows(row_kernels<uint16_t>().round_row_e4m3, x, gain, rounded);
  return rounded;
}

RoundedRows round_on_cuda(const at::Tensor& x, const at::Tensor& gains) {
  const at::Tensor rows = x.contiguous();
  RoundedRows rounded{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
                      at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  const Launch launch(rows);
  launch_round_to_e4m3(cuda_type_of(rows), rows.data_ptr(),
                       gains.defined() ? gains.const_data_ptr<float>() : nullptr,
                       static_cast<uint8_t*>(rounded.codes.data_ptr()),
                       rounded.scales.data_ptr<float>(), x.size(0), x.size(1), launch.stream());
  launch.check();
  return rounded;
}

/// Requirements of the hardware's products (at::_scaled_mm with row-wise scales): bf16 output and
/// dimensions that are multiples of 16.
bool hardware_serves(const Product& term) {
  constexpr int64_t kGroup = 16;
  constexpr int kAda = 89;
  const QuantizedMatrix& w = *term.w.quantized;
  return term.x.is_cuda() && term.x.scalar_type() == at::kBFloat16 && w.rows % kGroup == 0 &&
         w.columns % kGroup == 0 && compute_capability(term.x.device()) >= kAda;
}

ScaledCodes transposed_codes(const Product& term) {
  if (term.transposed_codes.codes.defined()) return term.transposed_codes;
  const QuantizedMatrix& w = *term.w.quantized;
  ScaledCodes transposed{at::empty({w.columns, w.rows}, w.packed.options()),
                         at::ones({1, w.columns}, w.absmax.options())};
  transpose_codes_into(w, transposed.codes);
  return transposed;
}

/// Both operands must be contiguous along the summed dimension (sm_89 and sm_90), so the backward
/// pass uses transposed codes.
at::Tensor hardware_product(const Product& term, const RoundedRows& rounded) {
  const QuantizedMatrix& w = *term.w.quantized;
  const ScaledCodes right =
      term.transposed ? ScaledCodes{w.packed.view({w.rows, w.columns}), w.absmax.unsqueeze(0)}
                      : transposed_codes(term);
  // As torchao's defaults: reduced-precision accumulation only in the forward pass.
  return at::_scaled_mm(rounded.codes, right.codes.t().view(at::kFloat8_e4m3fn), rounded.scales,
                        right.scales,
                        /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16,
                        /*use_fast_accum=*/term.transposed);
}

/// Through LibTorch operators, with fp32 accumulation.
at::Tensor product_of_codes(const Product& term, const RoundedRows& rounded,
                            const at::Tensor& column_factors) {
  const QuantizedMatrix alone = term.w.quantized->without_scales();
  const at::ScalarType dtype = term.x.is_cuda() ? term.x.scalar_type() : at::kFloat;
  const at::Tensor codes = rounded.codes.to(dtype);
  at::Tensor y;
  if (dtype == at::kFloat) {
    y = matmul_sum({{codes, alone, term.transposed}});
  } else {
    const at::Tensor w = dequantize(alone, dtype);
    y = at::mm(codes, term.transposed ? w.t() : w, at::kFloat);
  }
  y.mul_(rounded.scales);
  return column_factors.defined() ? y.mul_(column_factors) : y;
}

at::Tensor with_sums(at::Tensor y, const at::Tensor& residual, const at::Tensor& bias,
                     at::ScalarType dtype) {
  if (bias.defined()) y = y + bias;
  if (residual.defined()) y = y + residual;
  return y.to(dtype);
}

}  // namespace

RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains) {
  SFTRUN_CHECK(x.dim() == 2 && x.stride(1) == 1);
  if (gains.defined()) {
    require_operand(gains, x, at::kFloat);
    require_numel(gains, x.size(1));
  }
  const at::NoGradGuard no_grad;
  return x.is_cpu() ? round_on_cpu(x, gains) : round_on_cuda(x, gains);
}

bool multiplies_transposed_codes(const Product& term) {
  return !term.transposed && hardware_serves(term);
}

bool is_fp8(const Product& term) {
  return term.w.quantized != nullptr && term.w.quantized->info().rounds_activations &&
         term.w.quantized->absmax.defined();
}

at::Tensor fp8_product(const Product& term, const at::Tensor& residual, const at::Tensor& bias) {
  const QuantizedMatrix& w = *term.w.quantized;
  const at::Tensor none, &row_gains = term.transposed ? none : w.absmax,
                         &column_factors = term.transposed ? w.absmax : none;
  const RoundedRows rounded =
      term.rounded.codes.defined() ? term.rounded : round_to_e4m3(term.x, row_gains);
  const at::ScalarType dtype = term.x.scalar_type();
  if (hardware_serves(term))
    return with_sums(hardware_product(term, rounded), residual, bias, dtype);
  const QuantizedMatrix codes = w.without_scales();
  const std::vector<Product> terms = {{rounded.codes, codes, term.transposed}};
  if (!tiled_matmul_serves(terms))
    return with_sums(product_of_codes(term, rounded, column_factors), residual, bias, dtype);
  at::Tensor out =
      at::empty({term.x.size(0), term.w.size(term.transposed ? 0 : 1)}, term.x.options());
  tiled_matmul_sum(terms, residual, bias, out, {.rows = rounded.scales, .columns = column_factors});
  return out;
}

}  // namespace sftrun::kernels
