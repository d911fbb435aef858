#include "sftrun/weights/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "file_builders.h"
#include "half.h"
#include "sftrun/core/dtype.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/half.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
using test::expect_error;
using test::GgufBuilder;
using test::little_endian;

const std::filesystem::path kWeights = test::kData / "weights";

TEST(Half, EqualsTheReadableConversions) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = half_to_float(static_cast<uint16_t>(half)),
                expected = test::f16_to_f32(static_cast<uint16_t>(half));
    ASSERT_EQ(std::memcmp(&value, &expected, 4), 0) << half;
    ASSERT_EQ(float_to_half(value), std::isnan(value) ? ((half & 0x8000) | 0x7e00) : half);
  }
  for (uint64_t bits = 0; bits < (1ULL << 32);
       bits += 4093) {  // a prime: all mantissas and exponents come by
    float value;
    const auto word = static_cast<uint32_t>(bits);
    std::memcpy(&value, &word, 4);
    ASSERT_EQ(float_to_half(value), test::f32_to_f16(value)) << word;
  }
}

TEST(Dequantize, EqualsGgufPy) {
  const GgufFile file(kWeights / "blocks.gguf");
  const SafetensorsFile expected(kWeights / "dequantised.safetensors");
  ASSERT_EQ(file.tensors().size(), 13U);
  for (const GgufTensor& tensor : file.tensors()) {
    EXPECT_EQ(tensor.name, tensor.type.name);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 512}));
    std::vector<float> numbers(1024);
    dequantize(tensor.type, tensor.bytes.data(), 1024, numbers.data());
    const SafetensorsEntry* entry = expected.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    ASSERT_EQ(entry->bytes.size(), 4096U);
    EXPECT_EQ(std::memcmp(numbers.data(), entry->bytes.data(), 4096), 0) << tensor.name;
  }
}

TEST(GgufFile, ReadsMetadataOfEveryType) {
  const GgufFile file(kWeights / "blocks.gguf");
  const json& meta = file.metadata();
  EXPECT_EQ(meta["test.u8"], 200);
  EXPECT_EQ(meta["test.i8"], -100);
  EXPECT_EQ(meta["test.u16"], 60000);
  EXPECT_EQ(meta["test.i16"], -30000);
  EXPECT_EQ(meta["test.u32"], 4000000000U);
  EXPECT_EQ(meta["test.i32"], -2000000000);
  EXPECT_EQ(meta["test.u64"], (1ULL << 63) + 1);
  EXPECT_EQ(meta["test.i64"], -(1LL << 62));
  EXPECT_EQ(meta["test.f32"].get<double>(), 1e-5);
  EXPECT_EQ(meta["test.f64"].get<double>(), 1e-300);
  EXPECT_EQ(meta["test.bool"], true);
  EXPECT_EQ(meta["test.string"], "grüße");
  EXPECT_EQ(meta["test.short"], json::array({3, 1, 2}));
  EXPECT_FALSE(meta.contains("test.long_strings"));
  EXPECT_EQ(file.strings("test.long_strings").at(99), "token 99");
  EXPECT_EQ(file.floats("test.long_floats").at(2), static_cast<float>(2.0 / 3.0));
  EXPECT_EQ(file.ints("test.long_ints").front(), -50);
  EXPECT_EQ(file.ints("test.short"), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_TRUE(file.strings("absent").empty());
  expect_error([&] { file.strings("test.long_ints"); },
               {"`test.long_ints` must be an array of strings", "blocks.gguf"});
  expect_error([&] { file.floats("test.long_ints"); },
               {"`test.long_ints` must be an array of 32-bit floats"});
  expect_error([&] { file.ints("test.long_floats"); },
               {"`test.long_floats` must be an array of integers"});
}

struct DamagedGguf {
  const char* what;
  std::string bytes;
  std::string part;
};

constexpr uint32_t kU32 = 4, kString = 8, kArray = 9;

std::string array_of(uint32_t type, uint64_t count, const std::string& elements) {
  return little_endian(type) + little_endian(count) + elements;
}

/// Arrays of arrays of ….
std::string nested_arrays(int depth) {
  std::string value;
  for (int i = 0; i < depth; ++i) value += array_of(kArray, 1, "");
  return value + array_of(kU32, 0, "");
}

GgufBuilder with_data(size_t bytes) {
  GgufBuilder builder;
  builder.data_bytes = bytes;
  return builder;
}

std::vector<DamagedGguf> corrupt_files() {
  GgufBuilder many_keys, many_tensors, old_version, big_endian;
  many_keys.num_keys = many_tensors.num_tensors = 1ULL << 60;
  old_version.version = 1;
  big_endian.version = 3U << 24;
  const uint64_t huge = 1ULL << 33;
  return {
      {"empty", "", "not a GGUF file"},
      {"other magic", "GGML12345678", "not a GGUF file"},
      {"only a magic", "GGUF", "the file ends within the header"},
      {"version 1", old_version.bytes(), "GGUF version 1 is not supported"},
      {"big-endian", big_endian.bytes(), "big-endian"},
      {"too many keys", many_keys.bytes(), "the header declares "},
      {"too many tensors", many_tensors.bytes(), "the header declares "},
      {"long key",
       "GGUF" + little_endian<uint32_t>(3) + std::string(8, '\0') + little_endian<uint64_t>(1) +
           little_endian<uint64_t>(~0ULL) + std::string(8, '\0'),
       "the file ends within a metadata key"},
      {"key not UTF-8", GgufBuilder().key("\xff", kU32, little_endian<uint32_t>(1)).bytes(),
       "metadata key 0 is not UTF-8"},
      {"string not UTF-8", GgufBuilder().key("k", kString, GgufBuilder::text("\xff")).bytes(),
       "`k` is not UTF-8"},
      {"duplicate key",
       GgufBuilder()
           .key("k", kU32, little_endian<uint32_t>(1))
           .key("k", kU32, little_endian<uint32_t>(1))
           .bytes(),
       "`k` appears twice"},
      {"unknown value type", GgufBuilder().key("k", 77, "").bytes(),
       "`k` has the unknown value type 77"},
      {"unknown element type", GgufBuilder().key("k", kArray, array_of(77, 100, "")).bytes(),
       "`k` has the unknown element type 77"},
      {"array past the end", GgufBuilder().key("k", kArray, array_of(kU32, 1000, "")).bytes(),
       "the file ends within a metadata array"},
      {"overflowing array", GgufBuilder().key("k", kArray, array_of(kU32, 1ULL << 62, "")).bytes(),
       "the file ends within a metadata array"},
      {"strings past the end",
       GgufBuilder().key("k", kArray, array_of(kString, 1ULL << 60, "")).bytes(),
       "the file ends within a metadata array"},
      {"deep arrays", GgufBuilder().key("k", kArray, nested_arrays(100)).bytes(),
       "`k` is nested too deep"},
      {"bad alignment",
       GgufBuilder().key("general.alignment", kU32, little_endian<uint32_t>(24)).bytes(),
       "`general.alignment` must be a power of two"},
      {"tensor name not UTF-8", GgufBuilder().tensor("\xff", {8}, 0, 0).bytes(),
       "the name of tensor 0 is not UTF-8"},
      {"duplicate tensor", with_data(64).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).bytes(),
       "tensor `t` appears twice"},
      {"five dimensions", with_data(64).tensor("t", {1, 1, 1, 1, 8}, 0, 0).bytes(),
       "tensor `t` has 5 dimensions"},
      {"unknown type", with_data(64).tensor("t", {8}, 99, 0).bytes(),
       "tensor `t` has the unknown type 99"},
      {"partial block", with_data(64).tensor("t", {33}, 8, 0).bytes(),
       "tensor `t` has rows of 33 values, not a multiple of Q8_0's block size 32"},
      {"overflowing shape", with_data(64).tensor("t", {huge, huge}, 0, 0).bytes(),
       "tensor `t` has the shape [8589934592, 8589934592], which is too large"},
      {"negative size", with_data(64).tensor("t", {~0ULL}, 0, 0).bytes(),
       "tensor `t` is too large"},
      {"truncated", with_data(31).tensor("t", {8}, 0, 0).bytes(),
       "tensor `t` lies outside the file: 32 bytes at offset 0, but the data has 31 bytes"},
      {"offset past the end", with_data(64).tensor("t", {8}, 0, ~0ULL - 31).bytes(),
       "tensor `t` lies outside the file"},
      {"misaligned", with_data(64).tensor("t", {8}, 0, 4).bytes(),
       "tensor `t` begins at offset 4, which is not aligned to 32"},
      {"overlap", with_data(96).tensor("t", {16}, 0, 0).tensor("u", {8}, 0, 32).bytes(),
       "tensor `u` overlaps tensor `t`"},
  };
}

TEST(GgufFile, RefusesWhatTheFormatForbids) {
  for (const DamagedGguf& corrupt : corrupt_files()) {
    SCOPED_TRACE(corrupt.what);
    expect_error(
        [&] {
          GgufFile{test::as_bytes(corrupt.bytes), "bad.gguf"};
        },
        {corrupt.part, "at   bad.gguf"});
  }
}

TEST(GgufFile, ReadsWhatTheBuilderWrites) {
  const std::string bytes =
      with_data(64).key("k", kU32, little_endian<uint32_t>(5)).tensor("t", {4, 2}, 0, 32).bytes();
  const GgufFile file(test::as_bytes(bytes), "good.gguf");
  EXPECT_EQ(file.metadata()["k"], 5);
  ASSERT_NE(file.find("t"), nullptr);
  EXPECT_EQ(file.find("t")->shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(file.find("t")->bytes.size(), 32U);
}

TEST(GgufFile, KeepsAFlagForEveryLayer) {
  constexpr uint32_t kBool = 7;
  std::string flags = little_endian<uint32_t>(kBool) + little_endian<uint64_t>(100);
  for (int i = 0; i < 100; ++i) flags += static_cast<char>(i % 4 == 3);
  const std::string bytes =
      with_data(64).key("k", kArray, flags).tensor("t", {4, 2}, 0, 32).bytes();
  const GgufFile file(test::as_bytes(bytes), "good.gguf");
  const json& list = file.metadata().at("k");
  ASSERT_EQ(list.size(), 100U);
  EXPECT_EQ(list[99], true);
  EXPECT_EQ(list[98], false);
}

}  // namespace
}  // namespace sftrun::weights
