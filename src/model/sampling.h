#pragma once

#include <cstdint>

#include "sftrun/model/generate.h"

namespace sftrun::model {

/// Chooses the next token from fp32 logits [vocab]: the first maximum if temperature is 0; else a
/// sample from softmax(logits / temperature) restricted to the top_k, then to the smallest set with
/// total probability >= top_p, as in transformers.
int32_t sample_token(const float* logits, int64_t vocab, const SamplingOptions& options,
                     uint64_t stream, uint64_t position);

}  // namespace sftrun::model
