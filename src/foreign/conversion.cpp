#include "conversion.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/field_value.h"
#include "sftrun/config/foreign_keys.h"
#include "sftrun/config/objectives.h"
#include "sftrun/config/yaml_text.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/read_limits.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// "wandb.*" covers "wandb.project".
bool covers_key(std::string_view rule, std::string_view key) {
  return rule.ends_with('*') && key.starts_with(rule.substr(0, rule.size() - 1));
}

bool is_auto_word(const Value& value) {
  return value.kind == Value::Kind::kScalar && ascii_lower(value.text) == "auto";
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

/// Completes the keys of a section that lack the beginning which they share.
void complete_keys(Value& document, const std::string& section, const std::string& beginning) {
  for (size_t i = 0; i < document.keys.size(); ++i) {
    if (document.keys[i].text != section) continue;
    for (MapKey& key : document.items[i].keys)
      if (!key.text.starts_with(beginning)) key.text.insert(0, beginning);
  }
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

bool is_off(const Value& value) {
  if (value.kind == Value::Kind::kNull) return true;
  if (value.kind != Value::Kind::kScalar) return value.items.empty();
  return value.text.empty() || value.text == "0" || ascii_lower(value.text) == "none" ||
         ascii_lower(value.text) == "null" || parse_bool(value.text) == false;
}

const Value* value_at(const Value& document, std::string_view name) {
  const Value* value = &document;
  for (const std::string& part : split(name, '.')) {
    const auto found = std::find_if(value->keys.begin(), value->keys.end(),
                                    [&](const MapKey& key) { return key.text == part; });
    if (found == value->keys.end()) return nullptr;
    value = &value->items[static_cast<size_t>(found - value->keys.begin())];
  }
  return value;
}

Value interpolated(const Value& value, const Value& document) {
  constexpr size_t kLongest = 4096;  // paths; values that name each other cannot grow without end
  Value result = value;
  for (Value& item : result.items) item = interpolated(item, document);
  size_t begin = result.text.find("${");
  while (begin != std::string::npos && result.text.size() < kLongest) {
    const size_t end = result.text.find('}', begin);
    if (end == std::string::npos) break;
    const Value* named = value_at(document, result.text.substr(begin + 2, end - begin - 2));
    const bool is_text = named != nullptr && named->kind == Value::Kind::kScalar;
    if (is_text) result.text.replace(begin, end - begin + 1, named->text);
    begin = result.text.find("${", is_text ? begin + named->text.size() : end);
  }
  return result;
}

Conversion::Conversion(const ImportTable& table, std::filesystem::path file, Value document)
    : table_(table), file_(std::move(file)), document_(std::move(document)) {
  for (const auto& [section, beginning] : table_.prefixes)
    complete_keys(document_, section, beginning);
  for (int pass = 0; pass < 2 && table_.has_interpolation; ++pass)  // a value may name another
    document_ = interpolated(document_, document_);
}

void Conversion::run() {
  walk(document_, "");
  if (table_.finish != nullptr) table_.finish(*this);
  for (const ToolDefault& one : table_.defaults)
    if (!has(one.field) && (one.unless.empty() || !has(one.unless)))
      set_default(one.field, one.value);
  name_used_values();
}

void Conversion::name_used_values() {
  for (const auto& [note, field] : unused_) {
    const std::string value = used_value(field);
    not_carried[note].why += value.empty()
                                 ? fmt::format(" (it would become {})", field)
                                 : fmt::format("; `{}: {}` is used instead", field, value);
  }
  unused_.clear();
}

std::string Conversion::used_value(const std::string& field) {
  nlohmann::ordered_json value;
  const Given* const one = find_given(field);
  if (one == nullptr || config::try_value(field, one->assignment.value, value)) {
    config::RunConfig defaults;
    value = config::bind(defaults).find(field)->get();
  }
  return value.is_null() || value.empty() || value == "" ? "" : config::yaml_text(value);
}

Given* Conversion::find_given(std::string_view field) {
  const auto found = std::find_if(given.begin(), given.end(),
                                  [&](const Given& one) { return one.assignment.key == field; });
  return found == given.end() ? nullptr : &*found;
}

std::string Conversion::given_text(std::string_view field) const {
  for (const Given& one : given)
    if (one.assignment.key == field) return one.assignment.value.text;
  return {};
}

SourceKey Conversion::key_of(std::string name, const MapKey& key, const Value& value) const {
  const auto place = [&](Mark mark) {
    return fmt::format("{}:{}:{}", file_.string(), mark.line, mark.column);
  };
  return {.name = std::move(name),
          .value = value,
          .place = place(key.mark),
          .value_place = place(value.mark.line > 0 ? value.mark : key.mark),
          .source = fmt::format("{}:{}", file_.string(), key.mark.line)};
}

void Conversion::walk(const Value& map, const std::string& section) {
  for (size_t i = 0; i < map.items.size(); ++i) {
    const std::string name = section.empty() ? map.keys[i].text : section + "." + map.keys[i].text;
    const Value& value = map.items[i];
    const SourceKey key = key_of(name, map.keys[i], value);
    const bool is_path = map.keys[i].text.find('.') == std::string::npos;  // else unknown
    const ImportRule* rule = is_path ? find_rule(name) : nullptr;
    const bool has_own_rule = rule != nullptr && rule->key == name;
    const bool is_section = is_path && !has_own_rule && has_rule_inside(name);
    if (is_section && (value.kind == Value::Kind::kMap || is_off(value)))
      walk(value, name);
    else if (rule != nullptr)
      apply_rule(*rule, key);
    else if (is_section && table_.is_strict)
      refuse(key, fmt::format("`{}` is {}; it takes a map", name, describe(value)),
             fmt::format("write its keys inside `{}`", name));
    else
      apply_unknown(key);
  }
}

const ImportRule* Conversion::find_rule(std::string_view name) const {
  const ImportRule* prefix = nullptr;
  for (const ImportRule& rule : table_.rules) {
    if (rule.key == name) return &rule;
    if (prefix == nullptr && covers_key(rule.key, name)) prefix = &rule;
  }
  return prefix;
}

bool Conversion::has_rule_inside(std::string_view name) const {
  const std::string inside = std::string(name) + ".";
  return std::any_of(table_.rules.begin(), table_.rules.end(),
                     [&](const ImportRule& rule) { return rule.key.starts_with(inside); });
}

void Conversion::apply_rule(const ImportRule& rule, const SourceKey& key) {
  const bool is_harmless =
      is_off(key.value) || (!rule.harmless.empty() && equals_word(rule.harmless, key.value.text));
  switch (rule.effect) {
    case Effect::kField:
      if (key.value.kind == Value::Kind::kNull) return;
      return set(key, rule.field, key.value);
    case Effect::kWords:
      return apply_words(rule, key);
    case Effect::kNoMeaning:
      return note_no_meaning(key, rule.note);
    case Effect::kLost:
      if (!is_harmless) note_lost(key, rule.note);
      return;
    case Effect::kRefused:
      if (!is_harmless && !is_auto_word(key.value))
        refuse(key, fmt::format("`{}` of {} is not supported", key.name, table_.name),
               config::name_objectives(rule.note));
      return;
    case Effect::kConverted:
      if (key.value.kind != Value::Kind::kNull) rule.convert(*this, key);
      return;
    case Effect::kElsewhere:
      return;
  }
}

void Conversion::apply_words(const ImportRule& rule, const SourceKey& key) {
  if (key.value.kind == Value::Kind::kNull) return;
  if (table_.is_strict && is_auto_word(key.value)) return note_auto(key);
  std::vector<std::string> theirs;
  for (const auto& [word, ours] : rule.words) {
    if (key.value.kind == Value::Kind::kScalar && equals_word(word, key.value.text)) {
      if (!ours.empty()) set(key, rule.field, ours);
      return;
    }
    theirs.push_back(word);
  }
  const std::string why = fmt::format("`{}` is {}; known values: {}", key.name, describe(key.value),
                                      join(theirs, ", "));
  if (table_.is_strict)
    refuse(key, why,
           fmt::format("use one of them, or remove it and set {} in the run", rule.field));
  else
    note_unused(key, why, rule.field);
}

void Conversion::apply_unknown(const SourceKey& key) {
  const std::string leaf = key.name.substr(key.name.rfind('.') + 1);
  if (table_.is_strict) {
    const bool is_shown = problems.size() < ReadLimits().problems;
    const std::string near = is_shown ? nearest(key.name, key_names()) : "";
    return refuse(key,
                  fmt::format("unknown key `{}` in a file of {}", excerpt(key.name), table_.name),
                  near.empty() ? "remove it" : fmt::format("did you mean `{}`?", near));
  }
  if (is_train_field(leaf)) {
    if (key.value.kind != Value::Kind::kNull) set(key, "train." + leaf, key.value);
    return;
  }
  const ImportTable* const owner = other_owner(key.name);
  if (owner != nullptr && names_objective(*owner, key.name) && !is_off(key.value)) {
    return refuse(key,
                  fmt::format("`{}` is a key of {}, which {} does not have", key.name, owner->name,
                              table_.name),
                  fmt::format("remove it; {} names the objective by `{}`", table_.name,
                              table_.objective_keys.front()));
  }
  const config::ForeignKey* foreign = config::find_foreign_key(key.name);
  if (foreign == nullptr && is_off(key.value)) return;
  if (foreign == nullptr) {
    not_carried.push_back(
        {excerpt(key.name),
         owner == nullptr ? "not known here"
                          : fmt::format("not a key of {}, but of {}", table_.name, owner->name),
         key.place});
    return;
  }
  const std::string advice = config::advice_on(*foreign, key.value);
  if (!foreign->field.empty() && advice == fmt::format("use `{}`", foreign->field)) {
    if (key.value.kind != Value::Kind::kNull) set(key, foreign->field, key.value);
  } else if (advice.starts_with("not needed") || advice.starts_with("remove it")) {
    note_no_meaning(key, reason_of(advice));
  } else if (!is_off(key.value)) {
    note_lost(key, reason_of(advice));
  }
}

std::vector<std::string> Conversion::key_names() const {
  std::vector<std::string> names;
  for (const ImportRule& rule : table_.rules)
    if (!rule.key.ends_with('*')) names.push_back(rule.key);
  return names;
}

std::optional<SourceKey> Conversion::find(std::string_view name) const {
  auto key = find_named(name);
  if (key && key->value.kind == Value::Kind::kNull) key.reset();
  return key;
}

std::optional<SourceKey> Conversion::find_named(std::string_view name) const {
  const size_t dot = name.rfind('.');
  const Value* map =
      dot == std::string_view::npos ? &document_ : value_at(document_, name.substr(0, dot));
  if (map == nullptr) return std::nullopt;
  const std::string_view leaf = name.substr(dot == std::string_view::npos ? 0 : dot + 1);
  for (size_t i = 0; i < map->keys.size(); ++i) {
    if (map->keys[i].text == leaf) return key_of(std::string(name), map->keys[i], map->items[i]);
  }
  return std::nullopt;
}

std::string Conversion::text_of(std::string_view name) const {
  const auto key = find(name);
  return key ? key->value.text : "";
}

std::optional<int64_t> Conversion::count_of(std::string_view name, int64_t min) {
  const auto key = find(name);
  if (!key || is_auto_word(key->value)) return std::nullopt;
  const auto number = key->value.kind == Value::Kind::kScalar ? parse_int(key->value.text)
                                                              : std::optional<int64_t>();
  if (number && *number >= min) return number;
  refuse(*key,
         fmt::format("`{}` is {}; it takes a whole number of at least {}", name,
                     describe(key->value), min),
         fmt::format("write, for example, {}", std::max<int64_t>(min, 1)));
  return std::nullopt;
}

std::filesystem::path Conversion::path_beside(const std::string& name) const {
  std::filesystem::path path = name;
  if (path.is_absolute() || leads_to_file(path)) return path;
  std::filesystem::path beside = (file_.parent_path() / path).lexically_normal();
  return leads_to_file(beside) ? beside : path;
}

bool Conversion::has(std::string_view field) const {
  return std::any_of(given.begin(), given.end(),
                     [&](const Given& one) { return one.assignment.key == field; });
}

void Conversion::set(const SourceKey& key, std::string_view field, std::string_view text,
                     bool is_firm) {
  Value value = Value::scalar(std::string(text));
  value.mark = key.value.mark;
  set(key, field, std::move(value), is_firm);
}

void Conversion::set(const SourceKey& key, std::string_view field, Value value, bool is_firm) {
  if (table_.is_strict && is_auto_word(value)) return note_auto(key);
  if (!accept(key, field, value)) return;
  given.push_back(
      {.assignment = Assignment{.key = std::string(field),
                                .value = std::move(value),
                                .layer = config::Layer::kNamedFile,
                                .place = key.place,
                                .value_place = key.value_place,
                                .source = fmt::format("{} in {}", key.name, key.source)},
       .from = key.name,
       .is_firm = is_firm});
}

void Conversion::set_default(std::string_view field, std::string_view text) {
  set_default(field, Value::scalar(std::string(text)));
}

void Conversion::set_default(std::string_view field, Value value) {
  const std::string source = fmt::format("the default of {}", table_.name);
  given.push_back({.assignment = Assignment{.key = std::string(field),
                                            .value = std::move(value),
                                            .layer = config::Layer::kNamedFile,
                                            .place = source,
                                            .value_place = source,
                                            .source = source},
                   .from = {},
                   .is_firm = false});
}

bool Conversion::accept(const SourceKey& key, std::string_view field, const Value& value) {
  nlohmann::ordered_json wanted, earlier;
  if (const auto complaint = config::try_value(field, value, wanted)) {
    const std::string what = fmt::format("`{}` {}", key.name, complaint->what);
    if (table_.is_strict)
      refuse(key, what,
             complaint->fix.empty() ? fmt::format("it becomes {} here", field) : complaint->fix);
    else if (!is_auto_word(value))
      note_unused(key, what, field);
    else
      note_auto(key);
    return false;
  }
  const auto same = std::find_if(given.begin(), given.end(),
                                 [&](const Given& one) { return one.assignment.key == field; });
  if (same == given.end()) return true;
  config::try_value(field, same->assignment.value, earlier);
  if (config::canonical(field, wanted) != config::canonical(field, earlier)) {
    problems.push_back(
        {fmt::format("`{}` says {} {}, and `{}` says {}", same->from, field,
                     excerpt(same->assignment.value.kind == Value::Kind::kScalar
                                 ? same->assignment.value.text
                                 : earlier.dump()),
                     key.name,
                     excerpt(value.kind == Value::Kind::kScalar ? value.text : wanted.dump())),
         same->assignment.place + "; " + key.place, "keep one of them, or make them equal"});
  }
  return false;
}

void Conversion::note_auto(const SourceKey& key) {
  from_run.push_back({key.name, "auto: the run's value is used", key.place});
}

void Conversion::note_no_meaning(const SourceKey& key, std::string why) {
  no_meaning.push_back({key.name, std::move(why), key.place});
}

void Conversion::note_lost(const SourceKey& key, std::string why) {
  not_carried.push_back({key.name, std::move(why), key.place});
}

void Conversion::note_unused(const SourceKey& key, std::string why, std::string_view field) {
  unused_.emplace_back(not_carried.size(), field);
  note_lost(key, std::move(why));
}

void Conversion::take_back(std::string_view field, const std::string& why) {
  std::erase_if(given, [&](const Given& one) {
    if (one.assignment.key != field) return false;
    if (!one.from.empty()) no_meaning.push_back({one.from, why, one.assignment.place});
    return true;
  });
}

bool Conversion::is_reported(const std::string& place) {
  while (num_reported_ < problems.size()) reported_.insert(problems[num_reported_++].where);
  return reported_.contains(place);
}

void Conversion::refuse(const SourceKey& key, std::string message, std::string fix) {
  if (is_reported(key.value_place)) return;  // a consequence of what is wrong with it
  problems.push_back({std::move(message), key.value_place, std::move(fix)});
}

void Conversion::refuse(const SourceKey& key, const SourceKey& other, std::string message,
                        std::string fix) {
  problems.push_back({std::move(message), key.place + "; " + other.place, std::move(fix)});
}

void Conversion::include(Conversion&& other) {
  for (Given& one : other.given) {
    const Assignment& assignment = one.assignment;
    const SourceKey key{.name = one.from,
                        .value = assignment.value,
                        .place = assignment.place,
                        .value_place = assignment.value_place,
                        .source = assignment.source};
    if (accept(key, assignment.key, assignment.value)) given.push_back(std::move(one));
  }
  const auto append = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(from_run, other.from_run);
  append(no_meaning, other.no_meaning);
  append(not_carried, other.not_carried);
  append(weights_on_host, other.weights_on_host);
  append(problems, other.problems);
}

}  // namespace sftrun::foreign
