#pragma once

#include "sftrun/model/decoder.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::model {

/// A layer without its weights: its blocks, and their options.
/// @param arch with the sizes of this rank
Layer describe_layer(const spec::ArchSpec& arch, int64_t index, const DecoderOptions& options);

}  // namespace sftrun::model
