#pragma once

#include <string>

#include "sftrun/data/json_lines.h"

/// Every cell of a CSV file is a text: lists and objects stand there as JSON.
namespace sftrun::data {

/// Reads `tools`, `chat_template_kwargs`, and `prompt`, `completion`, `chosen` and `rejected` where
/// they are lists of messages; an empty cell of the first two is a missing value. (Of other files
/// such texts stay texts.)
/// @param role the key of a message's role
void read_text_cells(Json& record, const std::string& role = "role");

}  // namespace sftrun::data
