#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels::cuda {

/// x [rows, channels] += noise, with a magnitude per document.
/// @param step on the device, replaces `params.step`
/// @param cu_seqlens [documents + 1]; the last one is `rows`
void launch_embedding_noise(Type type, void* x, const TokenKey* tokens, const uint32_t* step,
                            const int32_t* cu_seqlens, int64_t documents, int64_t rows,
                            int64_t channels, const NoiseParams& params, Stream stream);

}  // namespace sftrun::kernels::cuda
