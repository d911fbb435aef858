#include "sftrun/config/table_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/problem.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

TableRow::TableRow(std::string_view table, const Value& row) : table_(table), row_(row) {
  if (row_.kind != Value::Kind::kMap) fail(fmt::format("a row is {}, not a map", describe(row_)));
}

void TableRow::fail(const std::string& what) const {
  throw ConfigError(what, fmt::format("{}:{}", table_, row_.mark.line),
                    "see the beginning of the table");
}

const Value* TableRow::find(std::string_view entry) const {
  const auto found = std::find_if(row_.keys.begin(), row_.keys.end(),
                                  [&](const MapKey& key) { return key.text == entry; });
  return found == row_.keys.end() ? nullptr
                                  : &row_.items[static_cast<size_t>(found - row_.keys.begin())];
}

std::string TableRow::scalar(std::string_view entry, const Value& value) const {
  if (value.kind != Value::Kind::kScalar)
    fail(fmt::format("`{}` has {}, not a text", entry, describe(value)));
  return value.text;
}

std::string TableRow::text(std::string_view entry) const {
  const Value* value = find(entry);
  return value == nullptr ? "" : scalar(entry, *value);
}

std::vector<std::string> TableRow::list(std::string_view entry) const {
  const Value* value = find(entry);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  if (value->kind != Value::Kind::kList) fail(fmt::format("`{}` is not a list", entry));
  for (const Value& item : value->items) texts.push_back(scalar(entry, item));
  return texts;
}

TextPairs TableRow::pairs(std::string_view entry) const {
  const Value* value = find(entry);
  TextPairs pairs;
  if (value == nullptr) return pairs;
  if (value->kind != Value::Kind::kMap) fail(fmt::format("`{}` is not a map", entry));
  for (size_t i = 0; i < value->keys.size(); ++i)
    pairs.emplace_back(value->keys[i].text, scalar(entry, value->items[i]));
  return pairs;
}

std::vector<TableRow> TableRow::rows(std::string_view entry) const {
  const Value* value = find(entry);
  return value == nullptr ? std::vector<TableRow>() : rows_of(table_, *value);
}

void TableRow::require_only(std::initializer_list<std::string_view> entries) const {
  for (const MapKey& key : row_.keys) {
    if (std::find(entries.begin(), entries.end(), key.text) == entries.end())
      fail(fmt::format("unknown entry `{}`", key.text));
  }
}

Value parse_table(std::string_view text, std::string_view table) {
  Problems problems;
  Value document = parse_yaml(std::string(text), std::string(table), problems);
  throw_if_any(problems);
  return document;
}

std::vector<TableRow> rows_of(std::string_view table, const Value& document) {
  std::vector<TableRow> rows;
  for (const Value& row : document.items) rows.emplace_back(table, row);
  return rows;
}

}  // namespace sftrun::config
