#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/dtype.h"
#include "sftrun/core/file.h"

/// The safetensors format (https://huggingface.co/docs/safetensors): 8-byte little-endian header
/// length, JSON header, data.
namespace sftrun::weights {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", …
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// One mapped file. @throws DataError for anything that the format forbids (overlaps, gaps, sizes
/// that disagree, headers over 100 MB)
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// Reads bytes that the caller keeps alive (tests, fuzzing).
  SafetensorsFile(std::span<const std::byte> bytes, const std::string& where);
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(const std::string& name) const;
  /// Gives tensors other names. @throws DataError naming one that would then be there twice
  void rename(const std::function<std::string(const std::string&)>& name_of,
              const std::string& where);
  const nlohmann::json& metadata() const { return metadata_; }
  uint64_t data_begin() const { return data_begin_; }  ///< offset in the file, after the header
  void release(std::span<const std::byte> part) const { file_.release(part); }  ///< see MappedFile

 private:
  void parse(std::span<const std::byte> bytes, const std::string& where);

  MappedFile file_;
  std::vector<SafetensorsEntry> entries_;  // in the order of their data
  std::map<std::string, size_t> index_;
  nlohmann::json metadata_;
  uint64_t data_begin_ = 0;
};

/// transformers' size of a file.
inline constexpr uint64_t kMaxShardBytes = 5'000'000'000ULL;

/// A tensor to write: `produce` is called when it is written and fills a buffer of exactly its
/// size, so that only one tensor is in memory at a time.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::function<void(void* destination)> produce;
};

/// Writes one file atomically, with metadata {"format": "pt"} as transformers expects. Tensors with
/// wider types come first, otherwise the order is kept; the data begins at a multiple of 64 bytes.
/// @throws DeviceError if it cannot be written
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<TensorToWrite>& tensors);
/// The same tensors with their values in memory: calls `produce` of each in the order in which
/// `write_safetensors` does, so that several processes can produce them together.
std::vector<TensorToWrite> held_in_memory(const std::vector<TensorToWrite>& tensors);
/// Size of the values.
uint64_t total_bytes(const std::vector<TensorToWrite>& tensors);
/// Calls `produce` for the same tensors in the same order without writing a file, for tensors that
/// several processes produce together.
void produce_without_file(const std::vector<TensorToWrite>& tensors);
/// The same for `write_sharded_safetensors`.
void produce_shards_without_files(const std::vector<TensorToWrite>& tensors,
                                  uint64_t max_shard_bytes = kMaxShardBytes);
/// Makes `produce` of fp16 tensors throw a DataError naming the tensor if a value overflows to
/// infinity.
void refuse_overflow(std::vector<TensorToWrite>& tensors);
/// Writes model.safetensors, or model-00001-of-0000N.safetensors with model.safetensors.index.json,
/// like transformers. The index is written last; then model*.safetensors files of an earlier save
/// are removed.
void write_sharded_safetensors(const std::filesystem::path& directory,
                               const std::vector<TensorToWrite>& tensors,
                               uint64_t max_shard_bytes = kMaxShardBytes);

}  // namespace sftrun::weights
