#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "text_generator.h"

namespace sftrun::engine {

/// What is written of an answer: "generated", "generated_tokens" and "finish_reason" (docs/inference.md).
nlohmann::ordered_json record_of(const Answer& answer);

/// Token ids and log-probabilities, by the names that `objective: grpo` reads (docs/grpo.md).
/// @pre the answer has them
/// @param is_changed tokens were drawn from another distribution than the model's own, whose
/// log-probabilities are written, too
nlohmann::ordered_json sample_of(const Answer& answer, const std::vector<int32_t>& prompt_ids,
                                 bool is_changed);

}  // namespace sftrun::engine
