#include "conversion.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/field_value.h"
#include "sftrun/config/yaml_text.h"
#include "sftrun/core/strings.h"
#include "table_application.h"

namespace sftrun::foreign {
namespace {

template <class Settings>
auto find_in(Settings& given, std::string_view field) -> decltype(given.data()) {
  const auto found = std::find_if(given.begin(), given.end(),
                                  [&](const Given& one) { return one.assignment.key == field; });
  return found == given.end() ? nullptr : &*found;
}

}  // namespace

void Conversion::run() {
  TableApplication(table_, *this).run();
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

std::string Conversion::used_value(const std::string& field) const {
  nlohmann::ordered_json value;
  const Given* const one = find_given(field);
  if (one == nullptr || config::try_value(field, one->assignment.value, value)) {
    config::RunConfig defaults;
    value = config::bind(defaults).find(field)->get();
  }
  return value.is_null() || value.empty() || value == "" ? "" : config::yaml_text(value);
}

const Given* Conversion::find_given(std::string_view field) const {
  return find_in(given, field);
}
Given* Conversion::find_given(std::string_view field) {
  return find_in(given, field);
}

std::string Conversion::given_text(std::string_view field) const {
  const Given* const one = find_given(field);
  return one == nullptr ? "" : one->assignment.value.text;
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
  const Given* const same = find_given(field);
  if (same == nullptr) return true;
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
