#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "file_builders.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::test {

/// A model of one safetensors file with one thing changed.
class DamagedModel : public testing::Test {
 protected:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };

  explicit DamagedModel(std::filesystem::path model) : model_(std::move(model)) {
    const weights::SafetensorsFile file(model_ / "model.safetensors");
    for (const weights::SafetensorsEntry& entry : file.entries())
      entries_[entry.name] = {
          entry.dtype, entry.shape,
          std::string(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size())};
  }

  void set(const std::string& name, const std::string& dtype, const std::string& bytes) {
    const int64_t size = dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3" ? 1
                         : dtype == "BF16"                                    ? 2
                                                                              : 4;
    entries_[name] = {dtype, {static_cast<int64_t>(bytes.size()) / size}, bytes};
  }

  std::unique_ptr<weights::Checkpoint> open() {
    nlohmann::json header;
    std::string data;
    for (const auto& [name, tensor] : entries_) {
      header[name] = {{"dtype", tensor.dtype},
                      {"shape", tensor.shape},
                      {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    write_file(directory_ / "model.safetensors",
               little_endian<uint64_t>(text.size()) + text + data);
    write_file(directory_ / "config.json", read_file(model_ / "config.json"));
    return weights::Checkpoint::open(directory_.path());
  }

  void expect_refused(std::initializer_list<std::string> parts) {
    expect_error([&] { open(); }, parts);
  }

  std::filesystem::path model_;
  TemporaryDirectory directory_;
  std::map<std::string, Tensor> entries_;
};

inline std::vector<float> read_all(const weights::Checkpoint& checkpoint,
                                   const weights::TensorInfo& info) {
  std::vector<float> values(static_cast<size_t>(info.numel()));
  checkpoint.read(info.name, DType::kF32, values.data());
  return values;
}

/// Every matrix that the reference unpacked (dequantised.safetensors) is packed here, of that
/// format, and has its very values; no other is.
inline void expect_unpacked(const std::filesystem::path& model, const std::string& format) {
  SCOPED_TRACE(model.filename().string());
  const auto checkpoint = weights::Checkpoint::open(model);
  const weights::SafetensorsFile expected(model / "dequantised.safetensors");
  size_t matrices = 0;
  for (const weights::TensorInfo& info : checkpoint->tensors()) {
    const weights::SafetensorsEntry* entry = expected.find(info.name);
    ASSERT_EQ(checkpoint->packed(info.name).has_value(), entry != nullptr) << info.name;
    if (entry == nullptr) continue;
    ++matrices;
    EXPECT_EQ(info.shape, entry->shape);
    EXPECT_EQ(info.format, format);
    const std::vector<float> values = read_all(*checkpoint, info);
    EXPECT_EQ(std::memcmp(values.data(), entry->bytes.data(), entry->bytes.size()), 0) << info.name;
    EXPECT_FALSE(checkpoint->mapped(info.name, DType::kF32));
  }
  EXPECT_EQ(matrices, 14U);
}

}  // namespace sftrun::test
