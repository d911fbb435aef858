#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/parallel/strategy.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/safetensors.h"

/// Checkpoints whose tensors are divided over files: each rank writes what it owns, and parts.json
/// says where the ranges of each tensor are. Values are in the order of their elements in memory.
namespace sftrun::train {

inline constexpr const char* kPartsIndex = "parts.json";

/// The trained values that this rank owns.
std::vector<StateTensor> trained_parts(const parallel::Strategy& strategy);

/// Whether this rank writes what it owns: of ranks with copies of the same values the first one.
bool writes_parts(const parallel::Strategy& strategy);

/// Writes the parts that a rank owns of `kind` ("trainable", "optimizer") to a file of its own;
/// none: no file.   @throws DeviceError if it cannot be written
void write_parts(const std::filesystem::path& directory, const std::string& kind, int rank,
                 const std::vector<StateTensor>& parts);

/// Writes parts.json, after all ranks have written.
/// @param tensors all tensors by kind, whose shapes the files must cover; their values are not used
/// @throws DeviceError if the files of some ranks are not there
void write_parts_index(const std::filesystem::path& directory,
                       const std::map<std::string, std::vector<StateTensor>>& tensors);

/// Reads ranges of divided tensors, of whatever ranks wrote them.
class DividedTensors {
 public:
  /// @throws DataError if parts.json or a file is missing or damaged
  DividedTensors(const std::filesystem::path& checkpoint, const std::string& kind);
  /// @param to receives elements from `part.begin` on, as many as it has; fp32 or uint8
  /// @throws DataError if the checkpoint does not have them
  void read(const StateTensor& part, at::Tensor to) const;

 private:
  std::filesystem::path index_path_;
  nlohmann::ordered_json index_;
  std::map<std::string, weights::SafetensorsFile> files_;
};

}  // namespace sftrun::train
