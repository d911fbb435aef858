#pragma once

#include <string>
#include <vector>

#include "sftrun/config/objectives.h"
#include "sftrun/config/rewards.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {

/// What data with such a record are made for, by its columns: answers that are compared, have a reward,
/// are judged or have a class, queries with texts that fit them, or prompts without an answer
/// (`train.rollouts`); else supervised fine-tuning.
config::Objective likely_objective(const Json& record);

/// Whether a run can answer the record itself: it has a prompt, a conversation or a question of a usual
/// name. A text, a pair and an answer with a reward have none.
bool has_question(const Json& record);

/// Whether the record has a prompt, a question of a usual name, or a conversation that ends with a user's turn, and no answer that a
/// format reads.
bool is_prompt_alone(const Json& record);

/// What `data.fields` may map, where the record has columns of usual names that no format has:
/// {"instruction": "question", "output": "answer"} of GSM8K, {"prompt": "question"} of pairs, or of prompts alone {"prompt": "question"}.
/// A "context" becomes Alpaca's input, and a "system_prompt" the system message, where the format has them.
/// Empty: the record is read as it is, or nothing is known of it.
/// @param of_prompts the run answers them, and the answer is what a reward compares with
Json likely_fields(const Json& record, bool of_prompts);
/// The same for embedding models: {"anchor": "question", "positive": "answer"}.
Json likely_fields_of_texts(const Json& record);

/// Of an answer that another column than "label" judges, by its usual names: {"label": "thumbs_up"}; empty: none does.
Json likely_fields_of_label(const Json& record);

/// The record with the names that `data.fields` gives.   @throws DataError for a column that it lacks
Json mapped_record(const Json& record, const Json& fields, const std::string& where);

/// Columns with a value that training on such a record does not read, in their order. Empty also for a record that does not fit.
/// @param record with the names of `data.fields`
std::vector<std::string> unused_columns(const Json& record, config::Objective objective);

/// @param fields as `data.fields` has them   @param of_prompts the run answers them
/// @throws DataError that says what such a record lacks for the objective
void require_fit(const Json& record, const Json& fields, config::Objective objective,
                 bool of_prompts, const std::string& where);

/// The key with which answers to such a prompt may be compared, by its usual names: "answer",
/// "solution", …; empty: none.   @param reward one with a key: for numbers, it holds one
std::string likely_reference(const Json& record, config::Reward reward);

/// What may judge answers to such a prompt, as `train.rollouts.reward` has it: "number", "{name: exact_match, key: solution}".
/// Empty: the record has no key of a usual name that an answer is compared with.
std::string likely_reward(const Json& record);

}  // namespace sftrun::data
