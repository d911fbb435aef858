#pragma once

#include <string>

#include "sftrun/core/dtype.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::exporting {

/// The type in which weights are written.   @param wanted f32, f16 or bf16; auto: the base's type
DType dtype_to_store(const std::string& wanted, const weights::Checkpoint& base);
/// The name of f32, f16 or bf16 as --dtype has it.
std::string dtype_word(DType dtype);

}  // namespace sftrun::exporting
