#pragma once

#include <string>

#include "sftrun/plan/micro_batch.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/quantization_config.h"

namespace sftrun::plan {

/// The quantised matrices of a checkpoint of which only config.json is here.
struct AssumedFiles {
  StoredBytes stored;   ///< empty: a method that is not read
  StoredBlocks blocks;  ///< of the same matrices
  std::string kind;     ///< as weights::block_kinds: "stored", "mxfp4"; empty with `stored`
};
/// Assumes that the method is used as its library does: bitsandbytes (4 and 8 bits) and FP8 for all
/// linear layers but routers, MXFP4 for experts.
AssumedFiles assumed_files(const spec::ArchSpec& arch, const spec::QuantizationConfig& config);

}  // namespace sftrun::plan
