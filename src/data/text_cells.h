#pragma once

#include <string>
#include <string_view>

#include "sftrun/data/json_lines.h"

/// Every cell of a CSV file is a text: lists of messages stand there as JSON.
namespace sftrun::data {

/// Reads `prompt` and `completion`, or `prompt`, `chosen` and `rejected`, where they are such lists.
/// Of other files such texts stay texts.
/// @param role the key of a message's role
void read_text_cells(Json& record, const std::string& role = "role");

/// Whether a text begins as the JSON of a list of messages does, or as Python prints one:
/// `[{"role"`, `[{'content'`.
bool begins_like_messages(std::string_view text);

}  // namespace sftrun::data
