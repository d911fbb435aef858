#include "field_map.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "nulls.h"
#include "record.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "text_cells.h"

namespace sftrun::data {
namespace {

bool is_optional(std::string_view field) {
  if (config::kMediaColumns.contains(field)) return true;
  return std::any_of(
      config::kRecordFormats.begin(), config::kRecordFormats.end(),
      [&](const config::RecordFormatInfo& info) { return info.optional.contains(field); });
}

/// Of all formats: a list of turns, or one.
const std::vector<std::string>& turn_columns() {
  static const std::vector<std::string> columns = config::columns_of_turns();
  return columns;
}

/// A member of an object, or an element of a list; null: there is none.
const Json* find_part(const Json& value, const std::string& part) {
  if (value.is_object()) {
    const auto it = value.find(part);
    return it == value.end() ? nullptr : &*it;
  }
  size_t index = 0;
  const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool is_index = code == std::errc() && end == part.data() + part.size();
  return value.is_array() && is_index && index < value.size() ? &value[index] : nullptr;
}

/// The value of a column, or inside it if the name has dots: "answers.text.0".
std::optional<Json> find_column(const Json& record, const std::string& column,
                                bool has_text_cells) {
  if (column.empty()) return std::nullopt;  // fields: {input: ""} leaves out the column
  if (const auto whole = record.find(column); whole != record.end()) return *whole;
  const Json* at = &record;
  Json parsed;  // of a cell
  for (const std::string& part : split(column, '.')) {
    if (has_text_cells && at->is_string()) {
      Json cell = parse_exact_text(at->get_ref<const std::string&>());
      parsed = std::move(cell);
      at = &parsed;
    }
    at = find_part(*at, part);
    if (at == nullptr) return std::nullopt;
  }
  return *at;
}

/// The other name under which a column of media is read; null: there is none.
const char* other_name(std::string_view column) {
  if (column == "images") return "image";
  return column == "videos" ? "video" : nullptr;
}

/// Class labels and numbers are converted to text.
Json as_text(const Json& value) {
  if (is_bytes(value)) return value;
  if (value.is_boolean() || value.is_number() || value.is_binary()) return to_json_text(value);
  return value;
}

/// Tables without lists store conversations as JSON strings.
void read_turns(Json& record, const std::string& key, const std::string& where) {
  const auto it = record.find(key);
  if (it == record.end() || !it->is_string()) return;
  Json turns = parse_json_text(it->get<std::string>());
  if (!turns.is_array()) {
    const bool looks_like_list = trim(it->get<std::string>()).starts_with('[');
    throw DataError(fmt::format("\"{}\" is a string that is not a JSON list", key), where,
                    looks_like_list
                        ? "write the list as JSON (json.dumps), not as Python prints it"
                        : "map text columns with data.fields: {prompt: …, completion: …}");
  }
  *it = std::move(turns);
}

/// Whether it is the column of whole conversations, in some format.
bool is_list_of_turns(std::string_view column) {
  return std::any_of(
      config::kRecordFormats.begin(), config::kRecordFormats.end(),
      [&](const config::RecordFormatInfo& info) { return info.turn_keys.list == column; });
}

bool has_turn_with(const Json& record, const std::string& key) {
  const auto has_key = [&](const Json& turn) { return turn.is_object() && turn.contains(key); };
  return std::any_of(turn_columns().begin(), turn_columns().end(), [&](const std::string& name) {
    const auto turns = record.find(name);
    if (turns == record.end()) return false;
    return turns->is_array() ? std::any_of(turns->begin(), turns->end(), has_key) : has_key(*turns);
  });
}

}  // namespace

FieldMap::FieldMap(const Json& fields, config::RecordFormat format)
    : turn_keys_(format == config::RecordFormat::kAuto ? config::TurnKeys{}
                                                       : config::format_info(format).turn_keys) {
  for (const auto& [ours, theirs] : fields.items()) {
    if (ours == "roles") {
      for (const auto& [from, to] : theirs.items()) roles_[from] = to.get<std::string>();
    } else if (ours == "role") {
      role_ = theirs.get<std::string>();
    } else if (ours == "content") {
      content_ = theirs.get<std::string>();
    } else if (ours == "train" || ours == "weight") {
      flags_.emplace_back(ours, theirs.get<std::string>());
    } else {
      columns_.emplace_back(is_list_of_turns(ours) ? turn_keys_.list : std::string_view(ours),
                            theirs.get<std::string>());
    }
  }
}

MappedRecord FieldMap::apply(Json record, const std::string& where, bool has_text_cells) const {
  MappedRecord result;
  Json mapped = Json::object();
  for (const auto& [ours, theirs] : columns_) {
    const std::optional<Json> value = find_column(record, theirs, has_text_cells);
    if (!value && !is_optional(ours)) {
      throw DataError(fmt::format("the record has no \"{}\", which data.fields maps to {} (its "
                                  "keys: {})",
                                  theirs, ours, keys_of(record)),
                      where, "correct data.fields, or the record");
    }
    if (value) mapped[ours] = config::kMediaColumns.contains(ours) ? *value : as_text(*value);
    if (!value && !theirs.empty()) result.absent.push_back(ours + ": " + theirs);
  }
  for (const auto& [ours, theirs] : columns_) {
    record.erase(ours);
    if (const char* other = other_name(ours)) record.erase(other);
    if (!theirs.empty()) record.erase(theirs);
  }
  const bool names_question = mapped.contains("instruction") && !mapped.contains("prompt");
  for (auto& [key, value] : mapped.items()) record[key] = std::move(value);
  if (names_question && is_preference(record)) record.erase("prompt");  // of a pair
  if (has_text_cells) read_text_cells(record, role_.empty() ? "role" : role_);
  for (const std::string& key : turn_columns())
    if (is_list_of_turns(key)) read_turns(record, key, where);
  result.record = std::move(record);
  find_absent_flags(result);
  for (const std::string& key : turn_columns())
    if (const auto it = result.record.find(key); it != result.record.end()) rename_turns(*it);
  round_fractions(result.record);
  return result;
}

void FieldMap::find_absent_flags(MappedRecord& mapped) const {
  for (const auto& [ours, theirs] : flags_)
    if (!has_turn_with(mapped.record, theirs)) mapped.absent.push_back(ours + ": " + theirs);
}

void FieldMap::require_pairs(const Json& record, const std::string& where) const {
  const auto maps = [&](std::string_view name) {
    return std::any_of(columns_.begin(), columns_.end(),
                       [&](const auto& column) { return column.first == name; });
  };
  // A preference record: detect_format names what is missing.
  const bool has_answers =
      value_of(record, "chosen") != nullptr && value_of(record, "rejected") != nullptr;
  if (maps("chosen") || maps("rejected") || has_answers) return;
  const auto require_both = [&](std::string_view one, std::string_view other) {
    if (!maps(one) || maps(other) || value_of(record, other.data()) != nullptr) return;
    throw DataError(fmt::format("data.fields maps {}, but {} is neither mapped nor a column (the "
                                "record's keys: {})",
                                one, other, keys_of(record)),
                    where, fmt::format("add {}: COLUMN to data.fields", other));
  };
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    if (info.is_pair) continue;
    for (const std::string_view one : info.columns)
      for (const std::string_view other : info.columns) require_both(one, other);
  }
}

void FieldMap::rename_turns(Json& turns) const {
  if (turns.is_object()) rename_turn(turns);  // an answer of preference records
  if (!turns.is_array()) return;
  for (Json& turn : turns)
    if (turn.is_object()) rename_turn(turn);
}

void FieldMap::rename_turn(Json& turn) const {
  const std::string role(turn_keys_.role), content(turn_keys_.content);
  const auto rename = [&](const std::string& theirs, const std::string& ours) {
    if (theirs.empty() || theirs == ours || value_of(turn, theirs.c_str()) == nullptr) return;
    Json value = turn[theirs];
    turn.erase(theirs);
    turn[ours] = std::move(value);
  };
  rename(role_, role);
  rename(content_, content);
  for (const auto& [ours, theirs] : flags_) rename(theirs, ours);
  auto name = turn.find(role);
  if (name == turn.end()) name = turn.find("from");  // ShareGPT that data.format does not name
  if (name == turn.end() || !name->is_string()) return;
  const auto mapped = roles_.find(name->get<std::string>());
  if (mapped != roles_.end()) *name = mapped->second;
}

}  // namespace sftrun::data
