#include "text_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "nulls.h"
#include "record_values.h"
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
  const bool are_messages =
      messages.is_array() && !messages.empty() &&
      std::all_of(messages.begin(), messages.end(), [&](const Json& message) {
        return value_of(message, role.c_str()) != nullptr || is_sharegpt_turn(message);
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

/// The text behind `token`, and spaces; nullopt: it does not begin with it.
std::optional<std::string_view> text_behind(std::string_view token,
                                            std::optional<std::string_view> text) {
  if (!text || !text->starts_with(token)) return std::nullopt;
  return trim(text->substr(token.size()));
}

}  // namespace

bool begins_like_messages(std::string_view text) {
  const auto turn = text_behind("{", text_behind("[", trim(text)));
  if (!turn || turn->empty() || (turn->front() != '"' && turn->front() != '\'')) return false;
  const std::string quote(1, turn->front());
  constexpr std::array<std::string_view, 4> kKeys = {"role", "content", "from", "value"};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](std::string_view key) {
    return turn->starts_with(fmt::format("{0}{1}{0}", quote, key));
  });
}

void read_text_cells(Json& record, const std::string& role) {
  read_pair(record, "prompt", "completion", role);
  if (!read_pair(record, "chosen", "rejected", role)) return;
  if (Json prompt = messages_in(record, "prompt", role); !prompt.is_discarded())
    record["prompt"] = std::move(prompt);
}

}  // namespace sftrun::data
