#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint_state.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/safetensors.h"

/// Checkpoints whose tensors are divided over files: each rank writes what it owns, and parts.json
/// says where the ranges of each tensor are. Values are in the order of their elements in memory.
namespace sftrun::train {

inline constexpr const char* kPartsIndex = "parts.json";
/// Kinds of divided tensors.
inline constexpr const char *kTrainableParts = "trainable", *kOptimizerParts = "optimizer";

/// The trained values that this rank owns.
std::vector<StateTensor> trained_parts(const parallel::Strategy& strategy);

/// Whether this rank writes what it owns: of ranks with copies of the same values the first one.
bool writes_parts(const parallel::Strategy& strategy);

/// Names and shapes of the whole tensors.
std::vector<DividedTensor> shapes_of(const std::vector<StateTensor>& parts);

/// Parts as flat tensors, named "<tensor>@<begin>". Empty parts are left out.
std::vector<weights::TensorToWrite> tensors_of_parts(const std::vector<StateTensor>& parts);

/// Writes the parts of a rank, a file for each kind that has some, and the records of these files.
/// @throws DeviceError if they cannot be written
void write_parts(const std::filesystem::path& directory, int rank,
                 const std::map<std::string, std::vector<weights::TensorToWrite>>& kinds);

/// Reads and removes the records that the ranks have written.
FileRecords take_records_of_parts(const std::filesystem::path& directory);

/// Writes parts.json, after all ranks have written.
/// @param shapes that the files must cover
/// @throws DeviceError if the files of some ranks are not there
void write_parts_index(const std::filesystem::path& directory, const DividedShapes& shapes);

/// Reads ranges of divided tensors, of whatever ranks wrote them.
class DividedTensors {
 public:
  /// @throws DataError if parts.json or a file is missing or damaged
  DividedTensors(const std::filesystem::path& checkpoint, const std::string& kind);
  bool is_empty() const { return index_.empty(); }
  bool has(const std::string& tensor) const { return index_.contains(tensor); }
  /// @param to receives elements from `part.begin` on, as many as it has; fp32 or uint8
  /// @throws DataError if the checkpoint does not have them
  void read(const StateTensor& part, at::Tensor to) const;

 private:
  std::filesystem::path index_path_;
  nlohmann::ordered_json index_;
  std::map<std::string, weights::SafetensorsFile> files_;
};

}  // namespace sftrun::train
