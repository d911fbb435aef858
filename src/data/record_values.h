#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record.h"

/// What the readers of several formats ask of a record's values.
namespace sftrun::data {

/// @throws DataError for a record without the column, which `format` requires
const Json& require(const Json& record, const char* key, RecordFormat format,
                    const std::string& where);
std::string require_string(const Json& record, const char* key, RecordFormat format,
                           const std::string& where);
/// Empty: the record has no such column.
std::string optional_string(const Json& record, const char* key, const std::string& where);
/// What data.fields reads of the values that are not texts; empty: it reads none.
std::string fields_for(const std::vector<std::pair<const char*, const Json*>>& values);

/// For objectives that read one answer.   @throws RecordError
[[noreturn]] void refuse_preference(const Json& record, const std::string& where);
bool is_sharegpt_turn(const Json& turn);
/// Refuses also values such as `"train": "false"`, which would be trained on.
void check_messages(const Json& messages, const char* key, const std::string& where);

/// With the record's tools and chat_template_kwargs.
Conversation conversation_of(const Json& record, Json messages, size_t num_prompt_messages,
                             const std::string& where);
Json message_of(std::string_view role, const std::string& content);

/// The shape of a record that is no pair.
std::vector<NamedShape> one_shape(RecordShape shape);

}  // namespace sftrun::data
