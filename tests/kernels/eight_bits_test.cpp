#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "../../src/kernels/cuda/matrix_views.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/weights/safetensors.h"
#include "support/matmul.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::kernels {
namespace {

using test::matmul_nt;

/// What transformers and bitsandbytes made (scripts/fixtures/make_eight_bits.py).
class EightBitsFixture {
 public:
  EightBitsFixture() : file_(directory() / "eight_bits.safetensors") {
    cases = nlohmann::json::parse(read_text_file(directory() / "eight_bits.json")).at("cases");
  }
  at::Tensor tensor(size_t number, const std::string& what, at::ScalarType dtype) const {
    return tensor(std::to_string(number) + "." + what, dtype);
  }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const {
    return test::tensor_of(*file_.find(name), dtype);
  }
  nlohmann::json cases;

 private:
  static std::filesystem::path directory() {
    return std::filesystem::path(SFTRUN_TEST_DATA) / "quant";
  }
  weights::SafetensorsFile file_;
};

at::ScalarType dtype_of_eight_bits(const std::string& name) {
  return name == "float32" ? at::kFloat : name == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

TEST(EightBits, CodesAndValuesOfE4m3AreTorchs) {
  const EightBitsFixture fixture;
  const at::Tensor values = fixture.tensor("every_code", at::kFloat);
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    at::Tensor codes = at::arange(256, at::kByte), decoded = at::empty({256}, at::kFloat);
    kernels->f32.dequantize_8bit(EightBits::kE4m3, codes.const_data_ptr<uint8_t>(), 256, 1.0F,
                                 decoded.data_ptr<float>());
    EXPECT_TRUE(at::equal(decoded.isnan(), values.isnan())) << isa;
    EXPECT_TRUE(test::same_bits(decoded.nan_to_num(0), values.nan_to_num(0))) << isa;
  }
  const at::Tensor between = fixture.tensor("between", at::kFloat),
                   expected = fixture.tensor("between_codes", at::kByte);
  for (int64_t i = 0; i < between.numel(); ++i) {
    ASSERT_EQ(cuda::e4m3_code_cut(between.const_data_ptr<float>()[i]),
              expected.const_data_ptr<uint8_t>()[i])
        << between[i].item<float>();
  }
}

TEST(EightBits, WhatE4m3HasNot) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cuda::e4m3_code_cut(kInfinity), 0x7e);  // 448
  EXPECT_EQ(cuda::e4m3_code_cut(-1e30F), 0xfe);
  EXPECT_EQ(cuda::e4m3_code_cut(std::nanf("")), 0x7f);
  const at::Tensor x = at::tensor({1.0F, std::nanf(""), 2.0F}).view({1, 3});
  EXPECT_TRUE(round_to_e4m3(x).codes.isnan().any().item<bool>());
  // Of which fp32 has no 448th: 3 of its smallest steps.
  const RoundedRows least = round_to_e4m3(at::tensor({4e-45F, 0.0F, -4e-45F}).view({1, 3}));
  EXPECT_TRUE(at::equal(least.codes.to(at::kFloat).abs(), at::zeros({1, 3})));
  EXPECT_GT(least.scales.item<float>(), 0);
}

TEST(EightBits, BytesAndValuesAreTheReferences) {
  const EightBitsFixture fixture;
  size_t checked = 0;
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const std::string format = fixture.cases[i].at("format");
    if (format == "product") continue;
    SCOPED_TRACE(std::to_string(i) + " " + fixture.cases[i].dump());
    const at::Tensor weight =
        fixture.tensor(i, "weight", dtype_of_eight_bits(fixture.cases[i].at("dtype")));
    const QuantizedMatrix matrix =
        quantize(weight, {.format = format == "fp8" ? QuantFormat::kFp8 : QuantFormat::kInt8});
    EXPECT_TRUE(test::same_bits(matrix.packed, fixture.tensor(i, "codes", at::kByte).flatten()));
    EXPECT_TRUE(test::same_bits(matrix.absmax, fixture.tensor(i, "factors", at::kFloat)));
    for (const char* name : {"float32", "bfloat16", "float16"}) {
      EXPECT_TRUE(at::equal(dequantize(matrix, dtype_of_eight_bits(name)),
                            fixture.tensor(i, name, dtype_of_eight_bits(name))))
          << name;
    }
    EXPECT_EQ(matrix.nbytes(), static_cast<uint64_t>(matrix.numel() + 4 * matrix.rows));
    ++checked;
  }
  EXPECT_GE(checked, 30U);
}

TEST(EightBits, EveryInstructionSetGivesTheSameBytes) {
  const at::Tensor values = at::randn({1, 1000}) * 3;
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8}) {
      const QuantizedMatrix matrix = quantize(values, {.format = format});
      const float scale = matrix.absmax.item<float>();
      const EightBits form = format == QuantFormat::kFp8 ? EightBits::kE4m3 : EightBits::kInt8;
      const at::Tensor of_fp16 = values.to(at::kHalf).to(at::kFloat);
      at::Tensor codes = at::empty({1000}, at::kByte);
      const float made = format == QuantFormat::kFp8
                             ? kernels->quantize_row_e4m3(values.const_data_ptr<float>(), 1000,
                                                          codes.data_ptr<uint8_t>())
                             : kernels->quantize_row_int8(of_fp16.const_data_ptr<float>(), 1000,
                                                          codes.data_ptr<uint8_t>());
      EXPECT_EQ(made, scale) << isa;
      EXPECT_TRUE(at::equal(codes, matrix.packed)) << isa;
      for (const int64_t first : {0, 1, 17, 990}) {
        at::Tensor wide = at::empty({1000 - first}, at::kFloat),
                   half = at::empty({1000 - first}, at::kBFloat16);
        const auto* from = codes.const_data_ptr<uint8_t>() + first;
        kernels->f32.dequantize_8bit(form, from, wide.numel(), scale, wide.data_ptr<float>());
        kernels->bf16.dequantize_8bit(form, from, half.numel(), scale,
                                      static_cast<uint16_t*>(half.data_ptr()));
        EXPECT_TRUE(test::same_bits(
            wide, dequantize(matrix, at::kFloat).flatten().narrow(0, first, 1000 - first).clone()))
            << isa << " from " << first;
        EXPECT_TRUE(test::same_bits(half, wide.to(at::kBFloat16))) << isa << " from " << first;
      }
    }
  }
}

/// Rows rounded without codes: large and small, with zeros of both signs, with NaN.
TEST(EightBits, RoundedRowsAreTheCodesValues) {
  const CpuKernels& generic = *cpu_kernels_by_name("generic");
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    for (const int64_t n : {1, 31, 32, 100, 4097}) {
      for (const float scale : {1.0F, 1e-20F, 1e-36F, 1e30F, 0.0F}) {
        SCOPED_TRACE(std::string(isa) + " " + std::to_string(n) + " " + std::to_string(scale));
        at::Tensor x = (at::randn({n}) * at::randn({n}).exp() * scale).to(at::kBFloat16);
        if (n > 32) x[40] = std::nanf(""), x[41] = -0.0F;
        const at::Tensor wide = x.to(at::kFloat), gains = at::rand({n});
        const at::Tensor gained = wide * gains;
        const auto expect = [&](const at::Tensor& of, float scale, const auto& unpack,
                                const auto& rounded) {
          std::vector<uint8_t> codes(rounded.size());
          EXPECT_EQ(scale, generic.quantize_row_e4m3(of.const_data_ptr<float>(), n, codes.data()));
          auto values = rounded;
          unpack(EightBits::kE4m3, codes.data(), n, 1.0F, values.data());
          EXPECT_EQ(std::memcmp(values.data(), rounded.data(), values.size() * sizeof(values[0])),
                    0);
        };
        std::vector<uint16_t> half(static_cast<size_t>(n));
        std::vector<float> rounded(static_cast<size_t>(n));
        const auto* halves = static_cast<const uint16_t*>(x.const_data_ptr());
        const float of_halves = kernels->bf16.round_row_e4m3(halves, nullptr, n, half.data());
        expect(wide, of_halves, generic.bf16.dequantize_8bit, half);
        const float of_gained = kernels->f32.round_row_e4m3(
            wide.const_data_ptr<float>(), gains.const_data_ptr<float>(), n, rounded.data());
        expect(gained, of_gained, generic.f32.dequantize_8bit, rounded);
        const float of_wide = kernels->f32.round_row_e4m3_to_bf16(wide.const_data_ptr<float>(),
                                                                  nullptr, n, half.data());
        expect(wide, of_wide, generic.bf16.dequantize_8bit, half);
      }
    }
  }
}

/// Forward and back, over shapes that are no multiple of anything: sums differ in their order, in
/// bf16 by their last rounding.
TEST(EightBits, ProductsInFp8RoundWhatTheyMultiply) {
  const EightBitsFixture fixture;
  size_t checked = 0;
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    if (fixture.cases[i].at("format") != "product") continue;
    SCOPED_TRACE(std::to_string(i) + " " + fixture.cases[i].dump());
    const at::ScalarType dtype = dtype_of_eight_bits(fixture.cases[i].at("dtype"));
    const double tolerance = dtype == at::kFloat ? 2e-6 : 4e-3;
    const at::Tensor weight = fixture.tensor(i, "weight", at::kFloat);
    const QuantizedMatrix w = quantize(weight, {.format = QuantFormat::kFp8});
    const at::Tensor x = fixture.tensor(i, "x", dtype), dy = fixture.tensor(i, "dy", dtype);
    EXPECT_TRUE(test::close(matmul_nt(x, w), fixture.tensor(i, "y", at::kFloat), tolerance));
    EXPECT_TRUE(
        test::close(matmul_sum({{dy, w, false}}), fixture.tensor(i, "dx", at::kFloat), tolerance));
    ++checked;
  }
  EXPECT_EQ(checked, 10U);
}

/// With what else a layer adds up: each FP8 product has scales of its own, others are not rounded.
TEST(EightBits, SumsWithOtherProducts) {
  for (const int64_t tokens : {3, 80}) {
    const QuantizedMatrix w = quantize(at::randn({40, 64}), {.format = QuantFormat::kFp8}),
                          v = quantize(at::randn({40, 32}) * 9, {.format = QuantFormat::kFp8});
    const at::Tensor x = at::randn({tokens, 64}), z = at::randn({tokens, 32}),
                     low = at::randn({tokens, 8}), b = at::randn({40, 8}),
                     residual = at::randn({tokens, 40}), bias = at::randn({40});
    const at::Tensor y = matmul_sum({{x, w, true}, {low, b, true}, {z, v, true}}, residual, bias);
    const at::Tensor expected =
        matmul_nt(x, w) + matmul_nt(z, v) + at::mm(low, b.t()) + residual + bias;
    EXPECT_TRUE(test::close(y, expected, 2e-6));
    const at::Tensor alone = matmul_sum({{x, w, true}}, residual, bias);
    EXPECT_TRUE(test::close(alone, matmul_nt(x, w) + residual + bias, 2e-6));
  }
}

TEST(EightBits, ThreadsChangeNothing) {
  const QuantizedMatrix w = quantize(at::randn({96, 64}), {.format = QuantFormat::kFp8});
  const at::Tensor x = at::randn({200, 64});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = matmul_nt(x, w);
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(matmul_nt(x, w), one));
  at::set_num_threads(threads);
}

TEST(EightBits, ProductsInInt8AreThoseOfTheUnpackedMatrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const QuantizedMatrix w = quantize(at::randn({98, 130}), {.format = QuantFormat::kInt8});
    const at::Tensor dense = dequantize(w, dtype), x = at::randn({70, 130}).to(dtype),
                     dy = at::randn({70, 98}).to(dtype);
    EXPECT_TRUE(at::equal(matmul_nt(x, w), matmul_nt(x, dense)));
    EXPECT_TRUE(at::equal(matmul_sum({{dy, w, false}}), matmul_sum({{dy, dense, false}})));
  }
}

TEST(EightBits, RowsAreThoseOfTheWhole) {
  const at::Tensor rows = at::tensor({4, 0, 4, 11}, at::kLong);
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8}) {
    const QuantizedMatrix matrix = quantize(at::randn({12, 50}), {.format = format});
    const at::Tensor whole = dequantize(matrix, at::kFloat);
    EXPECT_TRUE(at::equal(dequantize_rows(matrix, rows, at::kFloat), whole.index_select(0, rows)));
    EXPECT_TRUE(at::equal(dequantize(matrix.narrow(3, 5), at::kFloat), whole.narrow(0, 3, 5)));
  }
}

TEST(EightBits, Int8OfWhatFp16LacksIsAnError) {
  for (const float value : {1e6F, std::nanf("")}) {
    at::Tensor weight = at::ones({2, 3});
    weight[1][2] = value;
    EXPECT_THROW(quantize(weight, {.format = QuantFormat::kInt8}), DataError);
  }
}

/// What the CUDA kernel does to one value.
TEST(EightBits, CudasValuesAreTheCpus) {
  for (const auto& [format, form] : {std::pair(QuantFormat::kFp8, EightBits::kE4m3),
                                     std::pair(QuantFormat::kInt8, EightBits::kInt8)}) {
    const QuantizedMatrix matrix = quantize(at::randn({7, 33}), {.format = format});
    const at::Tensor values = dequantize(matrix, at::kFloat).flatten();
    const cuda::EightBitView view = cuda::eight_bit_view(matrix, form);
    for (int64_t i = 0; i < values.numel(); ++i)
      ASSERT_EQ(view.value(i), values.const_data_ptr<float>()[i]) << i;
  }
}

}  // namespace
}  // namespace sftrun::kernels
