#include "table_application.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/foreign_keys.h"
#include "sftrun/config/objectives.h"
#include "sftrun/core/read_limits.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// "wandb.*" covers "wandb.project".
bool covers_key(std::string_view rule, std::string_view key) {
  return rule.ends_with('*') && key.starts_with(rule.substr(0, rule.size() - 1));
}

/// Advice about a key of a run's YAML, as a reason: without "not needed: " and "; remove it".
std::string reason_of(std::string_view advice) {
  for (const std::string_view begin : {"not needed: ", "not supported: ", "remove it: "})
    if (advice.starts_with(begin)) advice.remove_prefix(begin.size());
  if (constexpr std::string_view kEnd = "; remove it"; advice.ends_with(kEnd))
    advice.remove_suffix(kEnd.size());
  return std::string(advice);
}

bool equals_word(std::string_view word, const std::string& text) {
  const auto truth = parse_bool(text);
  if (truth && truth == parse_bool(word)) return true;
  return ascii_lower(text) == ascii_lower(std::string(word));
}

/// The table of another tool that has a rule for this very key; nullptr: none.
const ImportTable* other_owner(std::string_view key) {
  const auto tables = import_tables();
  const auto found = std::find_if(tables.begin(), tables.end(), [&](const ImportTable* table) {
    return std::any_of(table->rules.begin(), table->rules.end(),
                       [&](const ImportRule& rule) { return rule.key == key; });
  });
  return found == tables.end() ? nullptr : *found;
}

bool names_objective(const ImportTable& table, std::string_view key) {
  return std::find(table.objective_keys.begin(), table.objective_keys.end(), key) !=
         table.objective_keys.end();
}

/// Whether `train` has a field of this name.
bool is_train_field(const std::string& leaf) {
  static const std::vector<std::string> names = [] {
    config::RunConfig scratch;
    std::vector<std::string> fields;
    for (const config::Field& field : config::bind(scratch).fields)
      if (field.section() == "train") fields.push_back(field.leaf());
    return fields;
  }();
  return std::find(names.begin(), names.end(), leaf) != names.end();
}

}  // namespace

void TableApplication::run() {
  walk(conversion_.source().root(), "");
}

void TableApplication::walk(const Value& map, const std::string& section) {
  for (size_t i = 0; i < map.items.size(); ++i) {
    const std::string name = section.empty() ? map.keys[i].text : section + "." + map.keys[i].text;
    const Value& value = map.items[i];
    const SourceKey key = conversion_.source().key_of(name, map.keys[i], value);
    const bool is_path = map.keys[i].text.find('.') == std::string::npos;  // else unknown
    const ImportRule* rule = is_path ? find_rule(name) : nullptr;
    const bool has_own_rule = rule != nullptr && rule->key == name;
    const bool is_section = is_path && !has_own_rule && has_rule_inside(name);
    if (is_section && (value.kind == Value::Kind::kMap || is_off(value)))
      walk(value, name);
    else if (rule != nullptr)
      apply_rule(*rule, key);
    else if (is_section && table_.is_strict)
      conversion_.refuse(key, fmt::format("`{}` is {}; it takes a map", name, describe(value)),
                         fmt::format("write its keys inside `{}`", name));
    else
      apply_unknown(key);
  }
}

const ImportRule* TableApplication::find_rule(std::string_view name) const {
  const ImportRule* prefix = nullptr;
  for (const ImportRule& rule : table_.rules) {
    if (rule.key == name) return &rule;
    if (prefix == nullptr && covers_key(rule.key, name)) prefix = &rule;
  }
  return prefix;
}

bool TableApplication::has_rule_inside(std::string_view name) const {
  const std::string inside = std::string(name) + ".";
  return std::any_of(table_.rules.begin(), table_.rules.end(),
                     [&](const ImportRule& rule) { return rule.key.starts_with(inside); });
}

void TableApplication::apply_rule(const ImportRule& rule, const SourceKey& key) {
  const bool is_harmless =
      is_off(key.value) || (!rule.harmless.empty() && equals_word(rule.harmless, key.value.text));
  switch (rule.effect) {
    case Effect::kField:
      if (key.value.kind == Value::Kind::kNull) return;
      return conversion_.set(key, rule.field, key.value);
    case Effect::kWords:
      return apply_words(rule, key);
    case Effect::kNoMeaning:
      return conversion_.note_no_meaning(key, rule.note);
    case Effect::kLost:
      if (!is_harmless) conversion_.note_lost(key, rule.note);
      return;
    case Effect::kRefused:
      if (!is_harmless && !is_auto_word(key.value))
        conversion_.refuse(key, fmt::format("`{}` of {} is not supported", key.name, table_.name),
                           config::name_objectives(rule.note));
      return;
    case Effect::kConverted:
      if (key.value.kind != Value::Kind::kNull) rule.convert(conversion_, key);
      return;
    case Effect::kElsewhere:
      return;
  }
}

void TableApplication::apply_words(const ImportRule& rule, const SourceKey& key) {
  if (key.value.kind == Value::Kind::kNull) return;
  if (table_.is_strict && is_auto_word(key.value)) return conversion_.note_auto(key);
  std::vector<std::string> theirs;
  for (const auto& [word, ours] : rule.words) {
    if (key.value.kind == Value::Kind::kScalar && equals_word(word, key.value.text)) {
      if (!ours.empty()) conversion_.set(key, rule.field, ours);
      return;
    }
    theirs.push_back(word);
  }
  const std::string why = fmt::format("`{}` is {}; known values: {}", key.name, describe(key.value),
                                      join(theirs, ", "));
  if (table_.is_strict)
    conversion_.refuse(
        key, why, fmt::format("use one of them, or remove it and set {} in the run", rule.field));
  else
    conversion_.note_unused(key, why, rule.field);
}

void TableApplication::apply_unknown(const SourceKey& key) {
  const std::string leaf = key.name.substr(key.name.rfind('.') + 1);
  if (table_.is_strict) {
    const bool is_shown = conversion_.problems.size() < ReadLimits().problems;
    const std::string near = is_shown ? nearest(key.name, key_names()) : "";
    return conversion_.refuse(
        key, fmt::format("unknown key `{}` in a file of {}", excerpt(key.name), table_.name),
        near.empty() ? "remove it" : fmt::format("did you mean `{}`?", near));
  }
  const ImportTable* const owner = other_owner(key.name);
  if (owner != nullptr && names_objective(*owner, key.name) && !is_off(key.value)) {
    return conversion_.refuse(key,
                              fmt::format("`{}` is a key of {}, which {} does not have", key.name,
                                          owner->name, table_.name),
                              fmt::format("remove it; {} names the objective by `{}`", table_.name,
                                          table_.objective_keys.front()));
  }
  if (is_train_field(leaf)) {
    if (key.value.kind != Value::Kind::kNull) conversion_.set(key, "train." + leaf, key.value);
    return;
  }
  const config::ForeignKey* foreign = config::find_foreign_key(key.name);
  if (foreign == nullptr && is_off(key.value)) return;
  if (foreign == nullptr) {
    conversion_.not_carried.push_back(
        {excerpt(key.name),
         owner == nullptr ? "not known here"
                          : fmt::format("not a key of {}, but of {}", table_.name, owner->name),
         key.place});
    return;
  }
  const std::string advice = config::advice_on(*foreign, key.value);
  if (!foreign->field.empty() && advice == fmt::format("use `{}`", foreign->field)) {
    if (key.value.kind != Value::Kind::kNull) conversion_.set(key, foreign->field, key.value);
  } else if (advice.starts_with("not needed") || advice.starts_with("remove it")) {
    conversion_.note_no_meaning(key, reason_of(advice));
  } else if (!is_off(key.value)) {
    conversion_.note_lost(key, reason_of(advice));
  }
}

std::vector<std::string> TableApplication::key_names() const {
  std::vector<std::string> names;
  for (const ImportRule& rule : table_.rules)
    if (!rule.key.ends_with('*')) names.push_back(rule.key);
  return names;
}

}  // namespace sftrun::foreign
