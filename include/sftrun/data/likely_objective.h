#pragma once

#include <string>

#include "sftrun/config/objectives.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {

/// What data with such a record are made for, by its columns: answers that are compared, have a reward,
/// are judged or have a class, queries with texts that fit them, or prompts without an answer
/// (`train.rollouts`); else supervised fine-tuning.
config::Objective likely_objective(const Json& record);

/// Whether the record has a prompt, or a conversation that ends with a user's turn, and no answer that a
/// format reads.
bool is_prompt_alone(const Json& record);

/// What may judge answers to such a prompt, as `train.rollouts.reward` has it: "number", "{name: exact_match, key: solution}".
/// Empty: the record has no key of a usual name that an answer is compared with.
std::string likely_reward(const Json& record);

}  // namespace sftrun::data
