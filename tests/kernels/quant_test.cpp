#include "sftrun/kernels/quant.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "../../src/kernels/formats/format_ops.h"
#include "sftrun/core/file.h"
#include "sftrun/core/rng.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/memory.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/matmul.h"
#include "support/quant_formats.h"
#include "support/random_blocks.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::kernels {
namespace {

using test::matmul_nt;
using test::normal;

at::ScalarType dtype_named(const std::string& name) {
  return name == "float32" ? at::kFloat : name == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

/// What bitsandbytes made (scripts/fixtures/make_quant.py).
class Fixture {
 public:
  Fixture() : file_(directory() / "cases.safetensors") {
    cases = nlohmann::json::parse(read_text_file(directory() / "cases.json")).at("cases");
  }
  at::Tensor tensor(size_t number, const std::string& what, at::ScalarType dtype) const {
    return tensor(std::to_string(number) + "." + what, dtype);
  }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const {
    const auto* entry = file_.find(name);
    return entry ? test::tensor_of(*entry, dtype) : at::Tensor();
  }
  nlohmann::json cases;

 private:
  static std::filesystem::path directory() {
    return std::filesystem::path(SFTRUN_TEST_DATA) / "quant";
  }
  weights::SafetensorsFile file_;
};

QuantOptions options_of(const nlohmann::json& settings) {
  return {.format = find_quant_format(settings.at("format").get<std::string>())->format,
          .block_size = settings.at("block_size").get<int64_t>(),
          .nested = settings.at("nested").get<bool>()};
}

/// Bit by bit. (Of fp4's two zeros bitsandbytes makes 0 or -0, as it has a kernel for a width or
/// not.)
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

TEST(Quant, BytesAndValuesAreBitsandbytes) {
  const Fixture fixture;
  EXPECT_TRUE(same_bits(nested_map(), fixture.tensor("nested_map", at::kFloat)));
  ASSERT_GE(fixture.cases.size(), 10U);
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const nlohmann::json& settings = fixture.cases[i];
    SCOPED_TRACE(settings.dump());
    const at::Tensor weight =
        fixture.tensor(i, "weight", dtype_named(settings.at("dtype").get<std::string>()));
    const QuantizedMatrix matrix = quantize(weight, options_of(settings));
    EXPECT_TRUE(same_bits(matrix.packed, fixture.tensor(i, "packed", at::kByte)));
    EXPECT_EQ(matrix.is_nested(), settings.at("nested").get<bool>());
    if (matrix.is_nested()) {
      EXPECT_TRUE(same_bits(matrix.codes, fixture.tensor(i, "codes", at::kByte)));
      EXPECT_TRUE(same_bits(matrix.nested_absmax, fixture.tensor(i, "nested_absmax", at::kFloat)));
      EXPECT_EQ(matrix.offset, fixture.tensor(i, "offset", at::kFloat).item<float>());
    } else {
      EXPECT_TRUE(same_bits(matrix.absmax, fixture.tensor(i, "absmax", at::kFloat)));
    }
    for (const char* name : {"float32", "bfloat16", "float16"}) {
      EXPECT_TRUE(at::equal(dequantize(matrix, dtype_named(name)),
                            fixture.tensor(i, name, dtype_named(name))))
          << name;
    }
  }
}

/// Any start and length, block sizes that are whole vectors and others, and scales that are NaN or
/// infinite.
TEST(Quant, EveryInstructionSetGivesTheSameBytes) {
  const at::Tensor weight = normal({64, 96}, 3, at::kFloat);
  for (const QuantFormat format : {QuantFormat::kNf4, QuantFormat::kFp4}) {
    for (const int64_t block : {int64_t{64}, int64_t{50}}) {
      const QuantizedMatrix matrix =
          quantize(weight, {.format = format, .block_size = block, .nested = false});
      matrix.absmax[3] = std::nanf("");
      matrix.absmax[5] = std::numeric_limits<float>::infinity();
      const auto unpacked = [&](const auto& kernels, int64_t first, int64_t count, auto* out) {
        kernels.dequantize_4bit(matrix.packed.const_data_ptr<uint8_t>(), first, count, block,
                                quant_table(format).data(),
                                matrix.absmax.const_data_ptr<float>() + first / block, out);
      };
      for (const char* isa : {"avx2", "avx512"}) {
        const CpuKernels *kernels = cpu_kernels_by_name(isa),
                         *generic = cpu_kernels_by_name("generic");
        if (kernels == nullptr) continue;
        for (const int64_t first : {0, 1, 63, 64, 100, 333}) {
          for (const int64_t count : {int64_t{7}, int64_t{130}, matrix.numel() - first}) {
            SCOPED_TRACE(std::string(isa) + " " + std::to_string(first));
            const auto n = static_cast<size_t>(count);
            std::vector<float> wide(n), expected(n);
            std::vector<uint16_t> half(n), expected_half(n);
            unpacked(kernels->f32, first, count, wide.data());
            unpacked(generic->f32, first, count, expected.data());
            unpacked(kernels->bf16, first, count, half.data());
            unpacked(generic->bf16, first, count, expected_half.data());
            EXPECT_EQ(std::memcmp(wide.data(), expected.data(), n * sizeof(float)), 0);
            EXPECT_EQ(half, expected_half);
          }
        }
      }
    }
  }
}

TEST(Quant, NumberOfThreadsChangesNothing) {
  const at::Tensor weight = normal({3000, 1111}, 5, at::kFloat);  // a mean over 52,000 factors
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const QuantizedMatrix one = quantize(weight, {});
  at::set_num_threads(4);
  const QuantizedMatrix four = quantize(weight, {});
  at::set_num_threads(threads);
  EXPECT_EQ(one.offset, four.offset);
  EXPECT_TRUE(same_bits(one.packed, four.packed));
  EXPECT_TRUE(same_bits(one.codes, four.codes));
  EXPECT_EQ(at::get_num_threads(), threads);
}

struct ProductCase {
  int64_t tokens, in, out;
  at::ScalarType dtype;
};
class QuantizedProducts : public ::testing::TestWithParam<ProductCase> {};

/// Unpacked part by part inside the product, or before it: the same sums.
TEST_P(QuantizedProducts, AreThoseOfTheUnpackedMatrix) {
  const ProductCase& c = GetParam();
  const QuantizedMatrix a = quantize(normal({c.out, c.in}, 1, at::kFloat), {}),
                        b = quantize(normal({c.out, c.in}, 2, at::kFloat),
                                     {.format = QuantFormat::kFp4, .nested = false});
  const at::Tensor x = normal({c.tokens, c.in}, 3, c.dtype),
                   dy = normal({c.tokens, c.out}, 4, c.dtype), dense_a = dequantize(a, c.dtype),
                   dense_b = dequantize(b, c.dtype), bias = normal({c.out}, 5, c.dtype);
  const at::Tensor y = matmul_sum({{x, a, true}}, {}, bias),
                   of_dense = matmul_sum({{x, dense_a, true}}, {}, bias);
  if (c.tokens >= 64) {
    EXPECT_TRUE(at::equal(y, of_dense));
  } else {  // summed in another order
    EXPECT_TRUE(test::close(y, of_dense, test::tolerance_for(c.dtype)));
  }
  const at::Tensor dx = matmul_sum({{dy, a, false}, {dy, b, false}}),
                   dx_of_dense = matmul_sum({{dy, dense_a, false}, {dy, dense_b, false}});
  EXPECT_TRUE(c.tokens >= 64 ? at::equal(dx, dx_of_dense)
                             : bool(test::close(dx, dx_of_dense, test::tolerance_for(c.dtype))));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantizedProducts,
    ::testing::Values(ProductCase{64, 64, 64, at::kFloat}, ProductCase{97, 130, 75, at::kFloat},
                      ProductCase{200, 2600, 66, at::kFloat}, ProductCase{70, 66, 2500, at::kFloat},
                      ProductCase{3, 50, 40, at::kFloat}, ProductCase{128, 64, 96, at::kBFloat16},
                      ProductCase{97, 130, 75, at::kBFloat16},
                      ProductCase{300, 2602, 130, at::kBFloat16},
                      ProductCase{1, 77, 31, at::kBFloat16}));

// ---- ggml's blocks. What their numbers are is tests/weights/gguf_test.cpp's, against gguf-py.

using weights::GgmlType;

using test::block_types;
using test::BlockType;
using test::info_of;
using test::random_blocks;

at::Tensor by_weights(const QuantizedMatrix& matrix) {
  at::Tensor values = at::empty({matrix.rows, matrix.columns}, at::kFloat);
  weights::dequantize(info_of(matrix.ggml_type),
                      static_cast<const std::byte*>(matrix.packed.const_data_ptr()), matrix.numel(),
                      values.data_ptr<float>());
  return values;
}

TEST(GgmlBlocks, AreWhatTheReaderOfFilesMakesOfThem) {
  for (const BlockType& type : block_types()) {
    SCOPED_TRACE(std::string(info_of(type.type).name));
    const QuantizedMatrix matrix = random_blocks(type, 7, 3, 1);
    const at::Tensor expected = by_weights(matrix);
    EXPECT_TRUE(same_bits(dequantize(matrix, at::kFloat), expected));
    EXPECT_TRUE(same_bits(dequantize(matrix, at::kBFloat16), expected.to(at::kBFloat16)));
    EXPECT_TRUE(same_bits(dequantize(matrix, at::kHalf), expected.to(at::kHalf)));
    EXPECT_EQ(matrix.nbytes(), static_cast<uint64_t>(7 * 3 * info_of(type.type).block_bytes));
  }
}

TEST(GgmlBlocks, EveryInstructionSetAndPlaceGivesTheSameNumbers) {
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    const CpuKernels* kernels = cpu_kernels_by_name(isa);
    if (kernels == nullptr) continue;
    for (const BlockType& type : block_types()) {
      SCOPED_TRACE(std::string(isa) + " " + std::string(info_of(type.type).name));
      const QuantizedMatrix matrix = random_blocks(type, 1, 9, 2);
      const at::Tensor expected = by_weights(matrix).flatten();
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 288},
                                         {1, 30},
                                         {31, 2},
                                         {64, 64},
                                         {33, 200},
                                         {5, 0},
                                         {100, 188}}) {
        at::Tensor wide = at::empty({count}, at::kFloat), half = at::empty({count}, at::kBFloat16);
        const auto* bytes = matrix.packed.const_data_ptr<uint8_t>();
        const auto id = static_cast<uint32_t>(matrix.ggml_type);
        kernels->f32.dequantize_ggml(id, bytes, first, count, wide.data_ptr<float>());
        kernels->bf16.dequantize_ggml(id, bytes, first, count,
                                      static_cast<uint16_t*>(half.data_ptr()));
        const at::Tensor part = expected.narrow(0, first, count).clone();
        EXPECT_TRUE(same_bits(wide, part)) << first;
        EXPECT_TRUE(same_bits(half, part.to(at::kBFloat16))) << first;
      }
    }
  }
}

TEST(Dequantize, IntoSomeRowsOfAJointMatrix) {
  const QuantizedMatrix first = quantize(normal({5, 67}, 3, at::kFloat), {}),
                        second = quantize(normal({3, 67}, 4, at::kFloat), {});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor joint = at::zeros({8, 67}, at::TensorOptions().dtype(dtype));
    dequantize_into(first, joint.narrow(0, 0, 5));
    dequantize_into(second, joint.narrow(0, 5, 3));
    EXPECT_TRUE(same_bits(at::cat({dequantize(first, dtype), dequantize(second, dtype)}), joint));
  }
  EXPECT_THROW(dequantize_into(first, at::zeros({5, 134}).narrow(1, 0, 67)), c10::Error);
  EXPECT_THROW(dequantize_into(first, at::zeros({4, 67})), c10::Error);
  EXPECT_THROW(dequantize_into(first, at::zeros({5, 67}, at::kByte)), c10::Error);
}

/// Infinite and not numbers: as the reader of files has them, but for the sign of what is none.
TEST(GgmlBlocks, ScalesThatAreNaN) {
  for (const BlockType& type : block_types()) {
    for (const uint8_t high : {0x7c, 0xfc, 0x7e}) {
      QuantizedMatrix matrix = random_blocks(type, 1, 2, 9);
      auto* second = matrix.packed.data_ptr<uint8_t>() + info_of(type.type).block_bytes;
      for (const int half : type.halves) second[half] = 0, second[half + 1] = high;
      if (type.type == GgmlType::kMxfp4) second[0] = 255;
      const at::Tensor expected = by_weights(matrix);
      SCOPED_TRACE(std::string(info_of(type.type).name));
      EXPECT_FALSE(expected.isfinite().all().item<bool>());
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor values = dequantize(matrix, dtype);
        EXPECT_TRUE(at::equal(values.isnan(), expected.isnan()));
        EXPECT_TRUE(
            same_bits(values.nan_to_num(0, 1, -1), expected.to(dtype).nan_to_num(0, 1, -1)));
      }
    }
  }
}

TEST(GgmlBlocks, ProductsAreThoseOfTheUnpackedMatrix) {
  for (const BlockType& type : block_types()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(info_of(type.type).name));
      const QuantizedMatrix a = random_blocks(type, 97, 5, 3);
      const at::Tensor dense = dequantize(a, dtype);
      for (const int64_t tokens : {1, 9, 70}) {
        const bool is_tiled = tokens == 70;
        const at::Tensor x = normal({tokens, a.columns}, 4, dtype),
                         dy = normal({tokens, a.rows}, 5, dtype);
        const at::Tensor y = matmul_nt(x, a), of_dense = matmul_nt(x, dense);
        EXPECT_TRUE(is_tiled ? at::equal(y, of_dense)
                             : bool(test::close(y, of_dense, test::tolerance_for(dtype))));
        if (dtype == at::kBFloat16 && is_tiled) continue;  // 97 is odd: served in another way
        const at::Tensor dx = matmul_sum({{dy, a, false}}),
                         dx_of_dense = matmul_sum({{dy, dense, false}});
        EXPECT_TRUE(is_tiled ? at::equal(dx, dx_of_dense)
                             : bool(test::close(dx, dx_of_dense, test::tolerance_for(dtype))));
      }
    }
  }
}

/// A few rows, by each instruction set's table through the chosen one: any depth and stride, one
/// answer whatever the number of threads.
TEST(Quant, ProductsOfAFewRows) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, in, out] : {std::tuple<int64_t, int64_t, int64_t>{1, 2500, 33},
                                        {2, 31, 100},
                                        {63, 1024, 17},
                                        {5, 1025, 64}}) {
      const QuantizedMatrix w = quantize(normal({out, in}, 11, at::kFloat), {});
      const at::Tensor x = normal({rows, in + 3}, 12, dtype).narrow(1, 1, in);
      const at::Tensor exact = at::mm(x.to(at::kDouble), dequantize(w, dtype).to(at::kDouble).t());
      const int threads = at::get_num_threads();
      at::set_num_threads(1);
      const at::Tensor one = matmul_nt(x, w), transposed = normal({rows, out}, 13, dtype);
      EXPECT_TRUE(
          test::close(matmul_sum({{transposed, w, false}}),
                      at::mm(transposed.to(at::kDouble), dequantize(w, dtype).to(at::kDouble)),
                      dtype == at::kFloat ? 1e-6 : 4e-3));
      at::set_num_threads(3);
      EXPECT_TRUE(at::equal(matmul_nt(x, w), one));
      at::set_num_threads(threads);
      EXPECT_TRUE(test::close(one, exact, dtype == at::kFloat ? 1e-6 : 4e-3));
    }
  }
}

TEST(Quant, RowsAreThoseOfTheWhole) {
  // Rows of whole blocks, of which 256 share a factor that is no row's: the last of many, and of a
  // part.
  const QuantizedMatrix many = quantize(normal({300, 192}, 9, at::kFloat), {});
  std::vector<QuantizedMatrix> matrices = {
      many,
      many.narrow(70, 111),
      quantize(normal({12, 64}, 10, at::kFloat), {.block_size = 32, .nested = false}),
      quantize(normal({12, 50}, 6, at::kFloat), {}),
      quantize(normal({12, 50}, 7, at::kFloat), {.format = QuantFormat::kFp4, .nested = false}),
      random_blocks(block_types()[7], 12, 2, 8)};
  for (const QuantizedMatrix& matrix : matrices) {
    const at::Tensor rows = at::tensor({int64_t{4}, int64_t{0}, int64_t{4}, matrix.rows - 1});
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      EXPECT_TRUE(at::equal(dequantize_rows(matrix, rows, dtype),
                            dequantize(matrix, dtype).index_select(0, rows)));
    }
  }
}

TEST(Quant, OperationsAreThoseOfTheirFormat) {
  for (const QuantFormatInfo& info : kQuantFormats) {
    EXPECT_EQ(ops_of(info.format).format, info.format);
    EXPECT_EQ(ops_of(info.format).quantize != nullptr, info.is_made);
  }
}

TEST(Quant, RefusesNaNAndInfinity) {
  for (const QuantFormat format : test::made_formats()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      at::Tensor weight = normal({7, 70}, 17, dtype);
      weight[3] = 0;  // no largest to divide by, and no reason to refuse
      quantize(weight, {.format = format}, "sound");
      for (const float none : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
        weight[6][69] = none;
        test::expect_error(
            [&] { quantize(weight, {.format = format}, "layers.3.up"); },
            {format == QuantFormat::kInt8 ? "tensor `layers.3.up` has NaN or values beyond 65504"
                                          : "tensor `layers.3.up` has NaN or infinite"});
      }
    }
  }
}

/// Of a tensor in fp32, as models are loaded: no copy of it.
TEST(Quant, TakesLittleBesideItsResult) {
  install_cpu_allocator();
  const at::Tensor weight = normal({2050, 4100}, 16, at::kFloat);
  for (const QuantFormat format : test::made_formats()) {
    const uint64_t before = cpu_memory_stats().allocated_bytes;
    reset_cpu_peak();
    const QuantizedMatrix matrix = quantize(weight, {.format = format});
    const uint64_t beside = cpu_memory_stats().peak_bytes - before - matrix.nbytes();
    EXPECT_LT(static_cast<double>(beside), 0.6 * static_cast<double>(weight.nbytes()))
        << std::string(quant_info(format).name);
  }
}

/// Large results go past the caches, row by row: 16 MiB and more.
TEST(Quant, LargeMatricesAreTheirParts) {
  const at::Tensor weight = normal({2001, 4195}, 15, at::kFloat);
  for (const QuantFormat format : test::made_formats()) {
    const QuantizedMatrix matrix = quantize(weight, {.format = format, .nested = false});
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor whole = dequantize(matrix, dtype);
      for (const int64_t first : {0, 1000, 1900})
        EXPECT_TRUE(
            at::equal(whole.narrow(0, first, 101), dequantize_range(matrix, first, 101, dtype)));
    }
  }
}

TEST(Quant, BytesAreWhatTheFormatNeeds) {
  const QuantizedMatrix nested = quantize(at::zeros({512, 512}), {}),
                        plain = quantize(at::zeros({512, 512}), {.nested = false});
  const uint64_t values = 512 * 512, blocks = values / 64;
  EXPECT_EQ(nested.nbytes(), values / 2 + blocks + blocks / 256 * 4);
  EXPECT_EQ(plain.nbytes(), values / 2 + blocks * 4);
}

/// Parts of a matrix, as tensor parallelism cuts them, with slices of several ranges.
std::vector<TensorSlice> slices_of(const QuantizedMatrix& matrix) {
  const int64_t block = matrix.values_per_block(), third = matrix.columns / 3 / block * block;
  return {{.dim = 0, .whole_size = matrix.rows, .ranges = {{2, 4}}},
          {.dim = 0, .whole_size = matrix.rows, .ranges = {{0, 2}, {6, 2}}},
          {.dim = 1, .whole_size = matrix.columns, .ranges = {{0, third}}},
          {.dim = 1, .whole_size = matrix.columns, .ranges = {{third, matrix.columns - third}}}};
}

void expect_parts_are_equal(const QuantizedMatrix& matrix) {
  const at::Tensor whole = dequantize(matrix, at::kFloat);
  for (const TensorSlice& slice : slices_of(matrix)) {
    SCOPED_TRACE(slice.ranges.front().begin);
    ASSERT_TRUE(matrix.has_part(slice));
    const QuantizedMatrix part = matrix.part(slice);
    std::vector<at::Tensor> expected;
    for (const IndexRange& range : slice.ranges)
      expected.push_back(whole.narrow(slice.dim, range.begin, range.count));
    EXPECT_TRUE(at::equal(dequantize(part, at::kFloat), at::cat(expected, slice.dim)));
    const at::Tensor x = normal({3, part.columns}, 5);
    EXPECT_TRUE(at::allclose(matmul_sum({{x, part, true}}),
                             at::mm(x, at::cat(expected, slice.dim).t()), 1e-4, 1e-4));
  }
}

/// Row slices, column slices and slices of slices have the values of the whole matrix, bit for bit.
TEST(QuantizedMatrix, PartsHaveTheValuesOfTheWhole) {
  for (const QuantFormat format : test::formats_with_exact_activations()) {
    for (const bool nested : {false, true}) {
      SCOPED_TRACE(quant_info(format).name);
      // More than 256 blocks, so that blocks of one row have different shared scales.
      const QuantizedMatrix matrix =
          quantize(normal({8, 64 * 45}, 3), {.format = format, .block_size = 64, .nested = nested});
      expect_parts_are_equal(matrix);
      const QuantizedMatrix columns = matrix.part(slices_of(matrix)[3]);
      expect_parts_are_equal(columns);
      expect_parts_are_equal(matrix.narrow(0, 8));
    }
  }
  for (const test::BlockType& type : test::block_types())
    expect_parts_are_equal(test::random_blocks(type, 8, 6, 2));
}

TEST(QuantizedMatrix, BlocksCannotBeSeparated) {
  const QuantizedMatrix matrix = quantize(normal({8, 96}, 3), {.block_size = 64});
  const auto has = [&](int64_t dim, int64_t first, int64_t count) {
    return matrix.has_part(
        {.dim = dim, .whole_size = dim == 0 ? 8 : 96, .ranges = {{first, count}}});
  };
  EXPECT_TRUE(has(0, 2, 4));
  EXPECT_FALSE(has(0, 1, 4)) << "a block lies in rows 0 and 1";
  EXPECT_FALSE(has(1, 0, 64)) << "the blocks of odd rows begin elsewhere";
  const QuantizedMatrix rows = quantize(normal({8, 96}, 3), {.format = QuantFormat::kInt8});
  EXPECT_TRUE(rows.has_part({.dim = 1, .whole_size = 96, .ranges = {{5, 7}}}));
}

/// A thread takes LibTorch's number of threads when it calls LibTorch for the first time.
TEST(Quantize, DoesNotLimitTheThreadsOfOthers) {
  const int threads = at::get_num_threads();
  constexpr int kThreads = 3, kBegun = 200;
  at::set_num_threads(kThreads);
  const at::Tensor weight = normal({64, 512}, 1, at::kFloat);
  std::atomic<bool> has_ended = false;
  std::thread quantizes([&] {
    while (!has_ended) quantize(weight, {.nested = true});
  });
  int limited = 0;
  for (int i = 0; i < kBegun; ++i)
    std::thread([&] { limited += at::get_num_threads() == kThreads ? 0 : 1; }).join();
  has_ended = true;
  quantizes.join();
  at::set_num_threads(threads);
  EXPECT_EQ(limited, 0);
}

}  // namespace
}  // namespace sftrun::kernels
