#include "sftrun/config/foreign_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/objectives.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {

extern const std::string_view kForeignKeyTable;  // foreign_keys.yaml (cmake/SftrunEmbed.cmake)

namespace {

/// The keys of a row. They share all but the name.
void add_keys(const TableRow& row, std::vector<ForeignKey>& keys) {
  row.require_only({"keys", "use", "field", "fix", "values"});
  const std::vector<std::string> names = row.list("keys");
  if (names.empty()) row.fail("a row without keys");
  if (row.has("use") == row.has("fix")) row.fail("a row has either `use` or `fix`");
  if (row.has("use") && row.has("field")) row.fail("`use` is the field");
  ForeignKey key{.field = row.text(row.has("use") ? "use" : "field"),
                 .fix = row.text("fix"),
                 .values = row.pairs("values")};
  if (row.has("use")) key.fix = fmt::format("use `{}`", key.field);
  for (const std::string& name : names) {
    key.name = name;
    keys.push_back(key);
  }
}

/// "wandb_*" covers "wandb_project".
bool covers(std::string_view name, std::string_view key) {
  return name.ends_with('*') && key.starts_with(name.substr(0, name.size() - 1));
}

template <class Matches>
const ForeignKey* find_if(const Matches& matches) {
  const std::vector<ForeignKey>& keys = foreign_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), matches);
  return found == keys.end() ? nullptr : &*found;
}

/// A scalar, or the only item of a list: `report_to: [tensorboard]`.
std::string single_value(const Value& value) {
  if (value.kind == Value::Kind::kScalar) return value.text;
  if (value.kind == Value::Kind::kList && value.items.size() == 1)
    return single_value(value.items[0]);
  return {};
}

bool is_same(std::string_view expected, const std::string& text) {
  const auto truth = parse_bool(text);
  if (truth && (expected == "true" || expected == "false")) return *truth == (expected == "true");
  // Unquoted `no` is a string in YAML 1.2 and a boolean in YAML 1.1.
  if (truth == false && expected == "no") return true;
  return ascii_lower(text) == ascii_lower(std::string(expected));
}

}  // namespace

std::vector<ForeignKey> read_foreign_keys(std::string_view table) {
  constexpr std::string_view kName = "foreign_keys.yaml";
  const Value document = parse_table(table, kName);
  std::vector<ForeignKey> keys;
  for (const TableRow& row : rows_of(kName, document)) add_keys(row, keys);
  return keys;
}

const std::vector<ForeignKey>& foreign_keys() {
  static const std::vector<ForeignKey> keys = read_foreign_keys(kForeignKeyTable);
  return keys;
}

const ForeignKey* find_foreign_key(std::string_view key) {
  const std::string_view leaf = key.substr(key.rfind('.') + 1);
  const auto is = [](std::string_view name) {
    return [name](const ForeignKey& foreign) { return foreign.name == name; };
  };
  if (const ForeignKey* whole = find_if(is(key))) return whole;
  if (const ForeignKey* last = find_if(is(leaf))) return last;
  return find_if([&](const ForeignKey& foreign) { return covers(foreign.name, leaf); });
}

std::string advice_on(const ForeignKey& foreign, const Value& value) {
  const std::string text = single_value(value);
  const auto found = std::find_if(foreign.values.begin(), foreign.values.end(),
                                  [&](const auto& known) { return is_same(known.first, text); });
  return name_objectives(found == foreign.values.end() ? foreign.fix : found->second);
}

}  // namespace sftrun::config
