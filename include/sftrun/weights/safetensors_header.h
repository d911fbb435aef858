#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/input_file.h"

/// The header of a safetensors file, without its data.
namespace sftrun::weights {

/// Where a tensor is in the data.
struct SafetensorsPlace {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", …
  std::vector<int64_t> shape;
  uint64_t begin = 0, size = 0;  ///< in bytes, from the begin of the data
};

struct SafetensorsHeader {
  std::vector<SafetensorsPlace> tensors;  ///< in the order of their data
  nlohmann::json metadata;                ///< null: none
  uint64_t data_begin = 0;                ///< offset in the file
};

/// @param beginning of the file, with the whole header   @param file_size in bytes
/// @throws DataError for anything that the format forbids (overlaps, gaps, sizes that disagree, headers over 100 MB)
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning, uint64_t file_size,
                                           const std::string& where);
/// Reads no more than the header.   @throws DataError as above, and if the file becomes shorter meanwhile
SafetensorsHeader read_safetensors_header(const InputFile& file);

}  // namespace sftrun::weights
