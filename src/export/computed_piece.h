#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_writer.h"

namespace sftrun::exporting {

/// A tensor of a GGUF file whose values are computed when it is written.
/// @param piece outlives the result   @param name of the merged tensor, for errors
/// @param values the whole tensor of which it is a piece, in fp32
/// @param may_be_infinite bounds that bound nothing; elsewhere such values are a DataError
weights::GgufTensorToWrite computed_piece(const weights::GgufPiece& piece,
                                          const weights::GgmlTypeInfo& type,
                                          const std::string& name,
                                          const std::function<at::Tensor()>& values,
                                          bool may_be_infinite = false);

}  // namespace sftrun::exporting
