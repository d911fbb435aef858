#pragma once

#include <cstdint>

#include "sftrun/model/generate.h"

namespace sftrun::model {

/// Chooses the next token from fp32 logits [vocab]: the largest (the first of equals) when
/// temperature is 0, else a draw from softmax(logits / temperature) cut to top_k, then to the
/// smallest set whose probability reaches top_p, as transformers does.
int32_t sample_token(const float* logits, int64_t vocab, const SamplingOptions& options,
                     uint64_t stream, uint64_t position);

}  // namespace sftrun::model
