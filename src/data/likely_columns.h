#pragma once

#include <string>

#include "sftrun/data/json_lines.h"

/// Advice for records whose keys are of no known format.
namespace sftrun::data {

/// Where a column holds one text, in the words of data.fields: "answers.text.0", or the column
/// itself for a text, a number or a boolean; empty: nowhere, or it is a list of turns or numbers.
std::string path_of_text(const std::string& column, const Json& value);

/// Whether a record holds token ids ("input_ids", "chosen_input_ids", …), and no text to train on.
bool is_tokenised(const Json& record);

/// For a run's data: data.fields with the columns that are probably meant.
std::string advise_fields(const Json& record);

/// For commands, which have no data.fields: the keys to rename or to add.
std::string advise_keys(const Json& record);
/// For a run that answers prompts: data.fields with the column that probably has them.
std::string advise_prompt_fields(const Json& record);
/// The same for commands.
std::string advise_prompt_keys(const Json& record);

}  // namespace sftrun::data
