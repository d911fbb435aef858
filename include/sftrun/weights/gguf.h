#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/weights/ggml_type.h"

/// The GGUF format, versions 2 and 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): key-value metadata, tensor list,
/// data.
namespace sftrun::weights {

struct GgufTensor {
  std::string name;            ///< as in the file: "blk.0.attn_q.weight"
  std::vector<int64_t> shape;  ///< slowest dimension first, as in PyTorch; reversed in the file
  GgmlTypeInfo type;
  std::span<const std::byte> bytes;
  int64_t numel() const;
};

/// One mapped file, bounds-checked completely when it is opened.
/// @throws DataError naming file and key or tensor: truncated, of another version or byte order,
/// sizes that overflow or point outside, overlapping or misaligned tensors, duplicate names,
/// unknown types
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  /// Reads bytes that the caller keeps alive (tests, fuzzing).
  GgufFile(std::span<const std::byte> bytes, std::string where);

  /// Scalars and strings by key, and arrays of at most 512 scalars or 64 strings. A 32-bit float is
  /// given as the shortest decimal number that rounds to it, as in the original configuration
  /// (1e-05, not 9.99999974e-06).
  const nlohmann::json& metadata() const { return metadata_; }
  /// The stored bytes of a key; all keys in the file's order.
  struct StoredValue {
    std::string key;
    uint32_t type = 0;                 ///< value type, as numbered by the format
    std::span<const std::byte> bytes;  ///< of the value only
  };
  const std::vector<StoredValue>& stored_values() const { return stored_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(const std::string& name) const;

  /// A complete array of any length; empty if the key is missing. @throws DataError if it has
  /// another type
  std::vector<std::string> strings(const std::string& key) const;
  std::vector<float> floats(const std::string& key) const;
  std::vector<int64_t> ints(const std::string& key) const;
  const std::string& where() const { return where_; }
  /// Offset in the file, after the list of tensors
  uint64_t data_begin() const { return data_begin_; }
  void release(std::span<const std::byte> part) const { file_.release(part); }  ///< see MappedFile

 private:
  struct Array {
    uint32_t type = 0;
    uint64_t count = 0;
    std::span<const std::byte> bytes;  ///< from the first element to the end of the file
  };
  class Parser;
  const Array* array(const std::string& key) const;

  MappedFile file_;
  std::string where_;
  nlohmann::json metadata_ = nlohmann::json::object();
  std::map<std::string, Array> arrays_;
  std::vector<StoredValue> stored_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t> index_;
  uint64_t data_begin_ = 0;
};

/// Dequantises whole blocks, bit-equal to gguf-py.
/// @param blocks count / block_size * block_bytes bytes, any alignment   @param count values
/// @pre type.readable and count is a multiple of block_size
void dequantize(const GgmlTypeInfo& type, const std::byte* blocks, int64_t count,
                float* destination);

}  // namespace sftrun::weights
