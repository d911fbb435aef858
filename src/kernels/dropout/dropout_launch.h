#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels::cuda {

/// @param step on the device, replaces `params.step`
void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, const uint32_t* step,
                    int64_t rows, int64_t channels, const DropoutParams& params, Stream stream);

}  // namespace sftrun::kernels::cuda
