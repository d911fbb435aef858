#include "sftrun/weights/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "file_builders.h"
#include "json_text.h"
#include "sftrun/weights/safetensors_header.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
using test::expect_error;
using test::safetensors_bytes;

TensorToWrite counting(const std::string& name, DType dtype, std::vector<int64_t> shape,
                       uint8_t first) {
  const int64_t bytes =
      std::accumulate(shape.begin(), shape.end(), size_of(dtype), std::multiplies<>());
  return {name, dtype, std::move(shape), [=](void* destination) {
            auto* out = static_cast<uint8_t*>(destination);
            for (int64_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(first + i);
          }};
}

TEST(WriteSafetensors, ComesBackEqual) {
  const test::TemporaryDirectory directory;
  write_safetensors(
      directory / "m.safetensors",
      {counting("half", DType::kBF16, {3, 5}, 1), counting("full", DType::kF32, {2, 4}, 9),
       counting("empty", DType::kF32, {0, 4}, 0), counting("scalar", DType::kI64, {}, 5)});
  const SafetensorsFile file(directory / "m.safetensors");
  EXPECT_EQ(file.metadata(), (json{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), 4U);
  const SafetensorsEntry* half = file.find("half");
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->dtype, "BF16");
  EXPECT_EQ(half->shape, (std::vector<int64_t>{3, 5}));
  ASSERT_EQ(half->bytes.size(), 30U);
  EXPECT_EQ(static_cast<uint8_t>(half->bytes[29]), 30);
  EXPECT_EQ(file.find("scalar")->bytes.size(), 8U);
  EXPECT_TRUE(file.find("empty")->bytes.empty());
  EXPECT_EQ(file.find("absent"), nullptr);
  // Wider types first, data from a multiple of 64 on: every tensor is aligned to its own type.
  EXPECT_EQ(file.entries().back().name, "half");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("scalar")->bytes.data()) % 64, 0U);
}

TEST(WriteSafetensors, LeavesNothingWhenProducingFails) {
  const test::TemporaryDirectory directory;
  TensorToWrite bad = counting("bad", DType::kF32, {4}, 0);
  bad.produce = [](void*) { throw DataError("no such tensor"); };
  EXPECT_THROW(write_safetensors(directory / "m.safetensors", {bad}), DataError);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

/// 65504 is fp16's largest number; what is beyond is written nowhere as an infinity.
TEST(WriteSafetensors, RefusesWhatFp16HasNot) {
  const test::TemporaryDirectory directory;
  const auto halves = [](DType dtype, uint16_t last) {
    return TensorToWrite{"t", dtype, {3}, [last](void* to) {
                           const uint16_t values[] = {0x7bff, 0x0001, last};
                           std::memcpy(to, values, sizeof(values));
                         }};
  };
  std::vector<TensorToWrite> sound = {halves(DType::kF16, 0xfbff), halves(DType::kBF16, 0x7f80)};
  sound[1].name = "bf16";
  refuse_overflow(sound);
  write_safetensors(directory / "sound.safetensors", sound);
  for (const uint16_t none : {uint16_t{0x7c00}, uint16_t{0xfc00}, uint16_t{0x7e00}}) {
    std::vector<TensorToWrite> tensors = {halves(DType::kF16, none)};
    refuse_overflow(tensors);
    expect_error([&] { write_safetensors(directory / "none.safetensors", tensors); },
                 {"tensor `t` has values that fp16 cannot represent", "fix: write bf16 or f32"});
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "none.safetensors"));
}

std::vector<TensorToWrite> five_tensors() {
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, rows] : {std::pair{"a", 4}, {"b", 4}, {"big", 40}, {"c", 4}, {"d", 4}}) {
    tensors.push_back(counting(name, DType::kF32, {rows}, 0));
  }
  return tensors;
}

TEST(WriteShardedSafetensors, ShardsAsTransformers) {
  const test::TemporaryDirectory directory;
  write_sharded_safetensors(directory.path(), five_tensors(), 40);
  const json index = json::parse(test::read_file(directory / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 56);
  // "big" gets its own shard at once, "a" and "b" stay in the one being filled: huggingface_hub's
  // rule.
  EXPECT_EQ(index["weight_map"], (json{{"big", "model-00001-of-00003.safetensors"},
                                       {"a", "model-00002-of-00003.safetensors"},
                                       {"b", "model-00002-of-00003.safetensors"},
                                       {"c", "model-00003-of-00003.safetensors"},
                                       {"d", "model-00003-of-00003.safetensors"}}));
  for (const auto& [name, shard] : index["weight_map"].items()) {
    EXPECT_NE(SafetensorsFile(directory / shard.get<std::string>()).find(name), nullptr);
  }
}

TEST(WriteShardedSafetensors, ReplacesAnEarlierSave) {
  const test::TemporaryDirectory directory;
  test::write_file(directory / "config.json", "{}");
  write_sharded_safetensors(directory.path(), five_tensors(), 40);
  write_sharded_safetensors(directory.path(), five_tensors());
  std::vector<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator(directory.path()))
    left.push_back(file.path().filename());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, (std::vector<std::string>{"config.json", "model.safetensors"}));
}

struct DamagedFile {
  const char* what;
  std::string bytes;
  std::vector<std::string> parts;
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

TEST(SafetensorsFile, RefusesWhatTheFormatForbids) {
  std::string deep = R"({"__metadata__":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  const std::string a = tensor("a", "F32", "[2]", "[0,8]");
  const std::vector<DamagedFile> cases = {
      {"empty file", "", {"the file ends within the header length"}},
      {"short file", "abc", {"the file ends within the header length", "truncated"}},
      {"huge header", test::little_endian<uint64_t>(1ULL << 62), {"over the limit"}},
      {"header past the end",
       test::little_endian<uint64_t>(1000) + "{}",
       {"the file ends within the header", "expected 1000 bytes"}},
      {"no object", safetensors_bytes("[]", 0), {"not a safetensors file"}},
      {"broken JSON", safetensors_bytes("{\"a\":\n {", 0), {"not valid JSON", ":2:"}},
      {"deep JSON", safetensors_bytes(deep, 0), {"nested deeper than 64"}},
      {"a NUL", safetensors_bytes(std::string("{}\0 {", 5), 0), {"a NUL byte", ":1:"}},
      {"not UTF-8", safetensors_bytes("{\"\xff\":{}}", 0), {"not valid JSON"}},
      {"duplicate name", safetensors_bytes("{" + a + "," + a + "}", 8), {"`a` appears twice"}},
      {"no object for a tensor",
       safetensors_bytes(R"({"a":3})", 0),
       {"tensor `a` has a description that is not"}},
      {"unknown key",
       safetensors_bytes(R"({"a":{"size":3}})", 0),
       {"tensor `a` has the unknown key `size`"}},
      {"no dtype",
       safetensors_bytes(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8),
       {"tensor `a` has no dtype"}},
      {"unknown dtype",
       safetensors_bytes("{" + tensor("a", "Q9", "[2]", "[0,8]") + "}", 8),
       {"tensor `a` has the unknown dtype \"Q9\""}},
      {"no shape",
       safetensors_bytes(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8),
       {"tensor `a` has no shape"}},
      {"negative shape",
       safetensors_bytes("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}", 8),
       {"tensor `a` has an invalid shape"}},
      {"shape over 64 bits",
       safetensors_bytes("{" + tensor("a", "F32", "[99999999999999999999]", "[0,8]") + "}", 8),
       {"tensor `a` has an invalid shape"}},
      {"overflowing shape",
       safetensors_bytes("{" + tensor("a", "F32", "[4294967296,4294967296,4]", "[0,8]") + "}", 8),
       {"tensor `a`", "too large"}},
      {"overflowing bytes",
       safetensors_bytes("{" + tensor("a", "F64", "[4611686018427387904]", "[0,8]") + "}", 8),
       {"tensor `a`", "too large"}},
      {"three offsets",
       safetensors_bytes("{" + tensor("a", "F32", "[2]", "[0,8,9]") + "}", 8),
       {"tensor `a` has invalid data_offsets"}},
      {"backward offsets",
       safetensors_bytes("{" + tensor("a", "F32", "[2]", "[8,0]") + "}", 8),
       {"tensor `a` has invalid data_offsets"}},
      {"lying size",
       safetensors_bytes("{" + tensor("a", "F32", "[3]", "[0,8]") + "}", 8),
       {"tensor `a` of shape [3] in F32 takes 12 bytes", "span 8"}},
      {"truncated data",
       safetensors_bytes("{" + a + "}", 7),
       {"tensor `a` ends at byte 8, but the data has 7 bytes", "truncated"}},
      {"overlap",
       safetensors_bytes("{" + a + "," + tensor("b", "F32", "[2]", "[4,12]") + "}", 12),
       {"tensor `b` overlaps"}},
      {"hole",
       safetensors_bytes("{" + a + "," + tensor("b", "F32", "[2]", "[12,20]") + "}", 20),
       {"tensor `b` begins after a gap"}},
      {"bytes left",
       safetensors_bytes("{" + a + "}", 9),
       {"1 bytes at the end belong to no tensor"}},
  };
  const test::TemporaryDirectory directory;
  for (const DamagedFile& corrupt : cases) {
    SCOPED_TRACE(corrupt.what);
    test::write_file(directory / "bad.safetensors", corrupt.bytes);
    for (const std::string& part : corrupt.parts) {
      expect_error([&] { SafetensorsFile{directory / "bad.safetensors"}; },
                   {part, "bad.safetensors"});
    }
    const std::string whole =
        test::error_of([&] { SafetensorsFile{directory / "bad.safetensors"}; });
    EXPECT_EQ(
        test::error_of([&] { read_safetensors_header(InputFile(directory / "bad.safetensors")); }),
        whole);
  }
  expect_error([&] { SafetensorsFile{directory / "absent.safetensors"}; },
               {"cannot open", "absent.safetensors"});
}

TEST(SafetensorsHeaders, SayWhereTensorsAre) {
  const test::TemporaryDirectory directory;
  const auto path = directory / "m.safetensors";
  write_safetensors(
      path, {counting("a", DType::kBF16, {3, 5}, 1), counting("b", DType::kF32, {2, 4}, 9)});
  const SafetensorsFile file(path);
  const InputFile input(path);
  const SafetensorsHeader header = read_safetensors_header(input);
  EXPECT_EQ(header.metadata, file.metadata());
  EXPECT_EQ(header.data_begin, file.data_begin());
  ASSERT_EQ(header.tensors.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const SafetensorsPlace& place = header.tensors[i];
    const SafetensorsEntry& entry = file.entries()[i];
    EXPECT_EQ(place.name, entry.name);
    EXPECT_EQ(place.dtype, entry.dtype);
    EXPECT_EQ(place.shape, entry.shape);
    const std::string bytes = input.read(header.data_begin + place.begin, place.size);
    EXPECT_EQ(bytes,
              std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()));
  }
}

/// As DeepSeek V3's model.safetensors.index.json has them.
TEST(Json, TheLastOfEqualKeysCountsAsInPython) {
  const std::string text = R"({"a": {"x": 1, "x": NaN}, "b": 2, "a": {"y": [3], "y": [4, 5]}})";
  EXPECT_EQ(parse_json(text, "config.json").dump(), R"({"a":{"y":[4,5]},"b":2})");
  test::expect_error<DataError>([&] { parse_json(text, "a.safetensors", EqualKeys::kRefused); },
                                {"`x` appears twice"});
}

TEST(Json, AnIndexHasTensorsOfManyExperts) {
  std::string text = R"({"weight_map": {"a": "b")";
  for (int i = 0; i < 100'000; ++i) text += fmt::format(R"(,"expert.{}": "b")", i);
  EXPECT_EQ(parse_json(text + "}}", "model.safetensors.index.json").at("weight_map").size(),
            100'001U);
}

}  // namespace
}  // namespace sftrun::weights
