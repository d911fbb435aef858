#pragma once

#include <string>

#include "sftrun/data/json_lines.h"

/// Every cell of a CSV file is a text: lists of messages stand there as JSON.
namespace sftrun::data {

/// Reads `prompt` and `completion`, or `prompt`, `chosen` and `rejected`, where they are such lists.
/// Of other files such texts stay texts.
/// @param role the key of a message's role
void read_text_cells(Json& record, const std::string& role = "role");

}  // namespace sftrun::data
