#pragma once

#include <string>
#include <vector>

#include "record.h"

namespace sftrun::data {

/// Columns with values that other trainers read but this format does not: `history` of Alpaca,
/// images, …
std::vector<std::string> unread_columns(const Json& record, RecordFormat format,
                                        const RecordShape& shape);
/// The advice for one of them.
std::string advice_on_column(const std::string& column);

}  // namespace sftrun::data
