#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/weights/gguf.h"

/// GGUF files, version 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors.
namespace sftrun {
class AtomicFile;
}

namespace sftrun::weights {

/// Keys and values in the order in which they were first set.
class GgufMetadata {
 public:
  void set_u32(const std::string& key, uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_bool(const std::string& key, bool value);
  void set_string(const std::string& key, std::string_view value);
  void set_strings(const std::string& key, const std::vector<std::string>& values);
  void set_floats(const std::string& key, std::span<const float> values);
  void set_ints(const std::string& key, std::span<const int32_t> values);
  /// Converts to a type that llama.cpp reads: UINT32, FLOAT32, BOOL, STRING; lists of INT32,
  /// FLOAT32, BOOL or STRING. @throws DataError for other values
  void set_json(const std::string& key, const nlohmann::json& value);
  /// Copies a value from another file. @param type value type, as numbered by the format
  void set_stored(const std::string& key, uint32_t type, std::span<const std::byte> bytes);

  size_t size() const { return entries_.size(); }
  std::string bytes() const;  ///< the encoded entries

 private:
  struct Entry {
    std::string key, value;
    uint32_t type = 0;
  };
  void set(const std::string& key, uint32_t type, std::string value);
  std::vector<Entry> entries_;
};

/// `produce` is called when the tensor is written and fills a buffer of exactly bytes(), so that
/// only one tensor is in memory at a time.
struct GgufTensorToWrite {
  std::string name;            ///< "blk.0.attn_q.weight"
  std::vector<int64_t> shape;  ///< slowest dimension first, as in PyTorch
  GgmlTypeInfo type;
  std::function<void(std::byte* destination)> produce;
  uint64_t bytes() const;  ///< size of the whole blocks
};

/// Tensors in the given order, each aligned to 32 bytes. The caller commits the file.
/// @throws DeviceError if it cannot be written
void write_gguf(AtomicFile& file, const GgufMetadata& metadata,
                const std::vector<GgufTensorToWrite>& tensors);
/// The same for a file that is written atomically.
void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufTensorToWrite>& tensors);

}  // namespace sftrun::weights
