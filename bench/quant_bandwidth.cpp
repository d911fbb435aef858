// Matrices in fewer bits unpacked, or multiplied by one token's values, and activations rounded to
// FP8, beside a copy of memory.
//
//     ninja -C build quant_bandwidth && build/bin/quant_bandwidth [millions of values] [rounds]
//     [cuda]
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "sftrun/kernels/memory.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/weights/gguf_quantize.h"
#include "support/cuda_kernels.h"

namespace {

using namespace sftrun;

constexpr int64_t kColumns = 4096;

/// What is read and what is written, by `dequantize`.
bench::Measurement of_unpacking(const kernels::QuantizedMatrix& matrix, const std::string& format,
                                at::ScalarType dtype) {
  const auto bytes =
      static_cast<double>(matrix.nbytes()) +
      static_cast<double>(matrix.numel()) * static_cast<double>(c10::elementSize(dtype));
  return {format + (dtype == at::kFloat ? " to fp32" : " to bf16"), bytes,
          [&matrix, dtype] { kernels::dequantize(matrix, dtype); }};
}

/// What is read, but for the token.
bench::Measurement of_product(const kernels::QuantizedMatrix& matrix, const std::string& format,
                              const at::Tensor& token) {
  return {"a token times " + format, static_cast<double>(matrix.nbytes()), [&matrix, token] {
            kernels::matmul_sum({{token, matrix, /*transposed=*/true}});
          }};
}

bench::Measurement of_copy_on_card(const at::Tensor& from, at::Tensor to) {
  return {"copy", 2.0 * static_cast<double>(from.nbytes()), [from, to] { to.copy_(from); }};
}

kernels::QuantizedMatrix in_blocks(const at::Tensor& values, weights::GgmlType type) {
  const weights::GgmlTypeInfo& info = *weights::ggml_type_info(static_cast<uint32_t>(type));
  kernels::QuantizedMatrix matrix;
  matrix.format = QuantFormat::kGgml;
  matrix.ggml_type = type;
  matrix.rows = values.size(0), matrix.columns = values.size(1);
  // Of types that are only read any bytes will do, whose factors are ordinary numbers.
  matrix.packed =
      at::randint(32, 96, {values.numel() / info.block_size * info.block_bytes}, at::kByte);
  if (weights::can_quantize(info)) {
    weights::quantize(info, values.const_data_ptr<float>(), values.numel(),
                      static_cast<std::byte*>(matrix.packed.data_ptr()));
  }
  return matrix;
}

}  // namespace

int main(int argc, char** argv) {
  const bool on_card = argc > 3 && std::string(argv[3]) == "cuda";
  const bench::Arguments arguments = bench::arguments_of(argc, argv, on_card ? 512 : 32);
  kernels::install_cpu_allocator();
  if (on_card) {
    const std::string missing = test::load_cuda_kernels();
    if (!missing.empty()) {
      std::fprintf(stderr, "error: %s\n", missing.c_str());
      return 2;
    }
  }
  const at::Device device = on_card ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const int64_t rows = std::max<int64_t>(1, arguments.values / kColumns);
  const at::Tensor values = at::randn({rows, kColumns});
  using enum QuantFormat;
  std::vector<std::pair<std::string, kernels::QuantizedMatrix>> matrices = {
      {"nf4, factors quantised", kernels::quantize(values, {})},
      {"nf4", kernels::quantize(values, {.nested = false})},
      {"fp4", kernels::quantize(values, {.format = kFp4, .nested = false})},
      {"fp8", kernels::quantize(values, {.format = kFp8})},
      {"int8", kernels::quantize(values, {.format = kInt8})},
      {"Q8_0", in_blocks(values, weights::GgmlType::kQ8_0)},
      {"Q4_0", in_blocks(values, weights::GgmlType::kQ4_0)},
      {"Q4_1", in_blocks(values, weights::GgmlType::kQ4_1)},
      {"Q5_0", in_blocks(values, weights::GgmlType::kQ5_0)},
      {"Q5_1", in_blocks(values, weights::GgmlType::kQ5_1)},
      {"MXFP4", in_blocks(values, weights::GgmlType::kMxfp4)},
      {"Q2_K", in_blocks(values, weights::GgmlType::kQ2_K)},
      {"Q3_K", in_blocks(values, weights::GgmlType::kQ3_K)},
      {"Q4_K", in_blocks(values, weights::GgmlType::kQ4_K)},
      {"Q5_K", in_blocks(values, weights::GgmlType::kQ5_K)},
      {"Q6_K", in_blocks(values, weights::GgmlType::kQ6_K)}};
  for (auto& [name, matrix] : matrices) matrix = matrix.to(device);
  std::vector<float> from(on_card ? 0 : static_cast<size_t>(values.numel()), 1.0F), to(from.size());
  std::vector<bench::Measurement> all = {
      on_card ? of_copy_on_card(values.to(device), at::empty_like(values, device))
              : bench::of_copy(from, to)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor token = at::randn({1, kColumns}).to(device, dtype);
    for (const auto& [name, matrix] : matrices) {
      all.push_back(of_unpacking(matrix, name, dtype));
      if (matrix.format != kFp8)  // whose activations are rounded, too
        all.push_back(
            of_product(matrix, name + (dtype == at::kFloat ? ", fp32" : ", bf16"), token));
    }
  }
  const at::Tensor half = values.to(device, at::kBFloat16);
  all.push_back({"bf16 rounded to fp8", (on_card ? 3.0 : 4.0) * static_cast<double>(half.numel()),
                 [&] { kernels::round_to_e4m3(half); }});
  if (!on_card) {
    bench::measure(std::move(all), arguments);
    return 0;
  }
  for (bench::Measurement& one : all) {
    one.work = [launch = one.work] {
      launch();
      at::accelerator::synchronizeDevice(0);
    };
  }
  bench::measure(std::move(all), arguments, "a GPU");
  return 0;
}
