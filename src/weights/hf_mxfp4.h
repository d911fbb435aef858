#pragma once

#include <string>
#include <vector>

#include "hf_files.h"
#include "mxfp4.h"
#include "sftrun/spec/arch_spec.h"

/// Experts in MXFP4 in a directory's files (gpt-oss): NAME_blocks [experts, rows, blocks per row,
/// bytes per block] and NAME_scales, one exponent per block.
namespace sftrun::weights {

inline constexpr const char* kMxfp4 = "MXFP4";  ///< `TensorInfo::format`

bool is_in_mxfp4(const spec::TensorSpec& spec, const HfFiles& files);
Mxfp4Blocks mxfp4_blocks(const std::string& name, const HfFiles& files);
/// The tensors that the files must have.
/// @param where the checkpoint   @throws DataError for rows that are no whole blocks
std::vector<spec::TensorSpec> mxfp4_tensors(const spec::TensorSpec& spec, const std::string& where);
/// @throws DataError if the files' tensors are not bytes
TensorInfo mxfp4_info(const spec::TensorSpec& spec, const HfFiles& files);

}  // namespace sftrun::weights
