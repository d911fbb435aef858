#pragma once

#include <string>
#include <vector>

#include "record.h"

namespace sftrun::data {

/// Columns of the record that other trainers read and this format does not, where they hold
/// something: `history` of Alpaca, images, …
std::vector<std::string> unread_columns(const Json& record, RecordFormat format,
                                        const RecordShape& shape);
/// What to do about one of them.
std::string advice_on_column(const std::string& column);

}  // namespace sftrun::data
