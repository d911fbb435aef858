#include "sftrun/weights/weights_summary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "sftrun/weights/safetensors.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using test::kData;

TensorToWrite zeros(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  const size_t bytes = static_cast<size_t>(shape.at(0) * size_of(dtype));
  return {name, dtype, std::move(shape), [bytes](void* to) { std::memset(to, 0, bytes); }};
}

TEST(WeightsSummary, CountsTensorsAndBytesOfAllShards) {
  const test::TemporaryDirectory directory;
  write_sharded_safetensors(
      directory.path(),
      {zeros("a", DType::kBF16, {64}), zeros("b", DType::kBF16, {64}), zeros("c", DType::kU8, {9})},
      /*max_shard_bytes=*/130);
  uint64_t bytes = 0, files = 0;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    bytes += entry.file_size();
    ++files;
  }
  EXPECT_GT(files, 1U);
  const WeightsSummary summary = summarize_weights(directory.path());
  EXPECT_EQ(summary.bytes, bytes);
  EXPECT_EQ(summary.tensors, 3);
  EXPECT_EQ(summary.types, (std::map<std::string, int64_t>{{"BF16", 2}, {"U8", 1}}));
}

TEST(WeightsSummary, NamesTheTypesOfAGgufFile) {
  const fs::path file = kData / "models/llama3-gguf/model-Q8_0.gguf";
  const auto description = describe_written(file, "gguf", "q8_0", nullptr);
  EXPECT_EQ(description["bytes"], fs::file_size(file));
  EXPECT_TRUE(description["types"].contains("Q8_0") && description["types"].contains("F32"));
  EXPECT_EQ(description["path"], file.string());
  EXPECT_TRUE(description["measured"].is_null());
}

}  // namespace
}  // namespace sftrun::weights
