#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {

/// The safetensors files of a directory in Hugging Face layout (model.safetensors, or shards with
/// their index), and where each tensor is.
class HfFiles {
 public:
  struct Located {
    const SafetensorsEntry* entry;
    const std::filesystem::path* file;
  };

  /// @param in_model gives a tensor's name in transformers' model for its name in the files
  /// @throws DataError for files that are missing or corrupt, tensors that are in two files, and an
  /// index that disagrees with its shards
  HfFiles(const std::filesystem::path& directory,
          std::function<std::string(const std::string& stored)> in_model);

  /// By their names in the model.
  const std::map<std::string, Located>& tensors() const { return located_; }
  bool contains(const std::string& name) const { return located_.contains(name); }
  const Located& at(const std::string& name) const { return located_.at(name); }
  const SafetensorsEntry* find(const std::string& name) const;  ///< nullptr: not in the files
  void remove(const std::string& name) { located_.erase(name); }

  std::vector<Checkpoint::WeightFile> weight_files() const;
  void release(std::span<const std::byte> part) const;  ///< see MappedFile

 private:
  struct File {
    std::filesystem::path path;
    SafetensorsFile content;
  };
  void open_file(const std::filesystem::path& path);
  void open_shards(const std::filesystem::path& directory);
  void require_indexed(const std::map<std::string, std::string>& shard_of,
                       const std::filesystem::path& index_path) const;

  std::function<std::string(const std::string&)> in_model_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Located> located_;
};

}  // namespace sftrun::weights
