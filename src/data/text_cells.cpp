#include "text_cells.h"

#include <algorithm>
#include <utility>

#include "nulls.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

/// The list of messages in a cell; discarded: it is another text.
Json messages_in(const Json& record, const char* key, const std::string& role) {
  const Json none(Json::value_t::discarded);
  const Json* cell = value_of(record, key);
  if (cell == nullptr || !cell->is_string()) return none;
  const std::string& text = cell->get_ref<const std::string&>();
  if (!trim(text).starts_with('[')) return none;
  Json messages = parse_json_text(text);
  const bool are_messages = messages.is_array() && !messages.empty() &&
                            std::all_of(messages.begin(), messages.end(), [&](const Json& message) {
                              return value_of(message, role.c_str()) != nullptr;
                            });
  return are_messages ? messages : none;
}

/// Both are read, or none: one list beside a text is a text, too.
bool read_pair(Json& record, const char* first, const char* second, const std::string& role) {
  Json of_first = messages_in(record, first, role), of_second = messages_in(record, second, role);
  if (of_first.is_discarded() || of_second.is_discarded()) return false;
  record[first] = std::move(of_first);
  record[second] = std::move(of_second);
  return true;
}

}  // namespace

void read_text_cells(Json& record, const std::string& role) {
  read_pair(record, "prompt", "completion", role);
  if (!read_pair(record, "chosen", "rejected", role)) return;
  if (Json prompt = messages_in(record, "prompt", role); !prompt.is_discarded())
    record["prompt"] = std::move(prompt);
}

}  // namespace sftrun::data
