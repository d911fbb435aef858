#include <fmt/format.h>

#include <algorithm>

#include "known_keys.h"
#include "layers.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr const char* kPlaceOfPath = "PATH";

std::string place_in(const std::string& file, Mark mark) {
  return fmt::format("{}:{}:{}", file, mark.line, mark.column);
}

class Flattener {
 public:
  Flattener(const std::string& file, const Binding& fields, Problems& problems)
      : file_(file), fields_(fields), problems_(problems) {}

  void walk(const Value& map, const std::string& section) {
    for (size_t i = 0; i < map.items.size(); ++i) {
      if (const size_t rest = report_list_without_brackets(map, i, section); rest > 0) {
        i += rest - 1;
        continue;
      }
      const std::string key = section.empty() ? map.keys[i].text : section + "." + map.keys[i].text;
      if (map.keys[i].text.find('.') != std::string::npos) {
        report_dots(key, map.keys[i]);
      } else if (fields_.has_section(key)) {
        walk_section(key, map.keys[i], map.items[i]);
      } else if (has_main_keys(key) && map.items[i].kind == Value::Kind::kMap) {
        walk(map.items[i], key);
      } else {
        add(key, map.keys[i], map.items[i]);
      }
    }
  }

  std::vector<Assignment> assignments;

 private:
  void walk_section(const std::string& key, const MapKey& name, const Value& value) {
    if (value.kind == Value::Kind::kNull) return;
    if (value.kind == Value::Kind::kMap) return walk(value, key);
    if (says_nothing_is_offloaded({.key = key, .value = value})) return add_none(key, name, value);
    const bool is_empty = value.kind == Value::Kind::kScalar && trim(value.text).empty();
    problems_.push_back({is_empty ? fmt::format("`{}` is empty; it takes a map", key)
                                  : fmt::format("`{}` is {}; it takes a map", key, describe(value)),
                         place_in(file_, value.mark), fix_of_value(key, value)});
    add_required(key, name, value);
  }

  /// What a run must have is not reported as missing, too.
  void add_required(const std::string& section, const MapKey& name, const Value& value) {
    const std::string meant = setting_of_section(section);
    const bool is_required = meant == "model.name" || meant == "data.train";
    if (value.kind != Value::Kind::kScalar || !is_required) return;
    Value stated = value;
    if (trim(value.text).empty()) stated.text = kPlaceOfPath;
    add(meant, name, stated);
  }

  static std::string fix_of_value(const std::string& section, const Value& value) {
    const std::string meant = setting_of_section(section);
    if (value.kind != Value::Kind::kScalar || meant.empty())
      return fmt::format("indent its keys below `{}:`", section);
    const bool is_empty = trim(value.text).empty();
    return fmt::format("write `{}: {{ {}: {} }}`", section, meant.substr(section.size() + 1),
                       is_empty ? std::string(kPlaceOfPath) : excerpt(value.text));
  }

  bool is_field(const std::string& key) const {
    return std::any_of(fields_.fields.begin(), fields_.fields.end(),
                       [&](const Field& field) { return field.key == key; });
  }

  /// Reports `{target_modules: q_proj,k_proj}`, where YAML reads a key `k_proj` without a value.
  /// @param at index of a key   @return how many keys are the rest of a list
  size_t report_list_without_brackets(const Value& map, size_t at, const std::string& section) {
    const std::string prefix = section.empty() ? "" : section + ".";
    const auto is_rest = [&](size_t i) {
      return i < map.items.size() && map.items[i].kind == Value::Kind::kNull &&
             map.items[i].text.empty() && map.keys[i].mark.line == map.keys[i - 1].mark.line &&
             !is_field(prefix + map.keys[i].text) &&
             !fields_.has_section(prefix + map.keys[i].text);
    };
    if (at == 0 || map.items[at - 1].kind != Value::Kind::kScalar ||
        !is_field(prefix + map.keys[at - 1].text))
      return 0;
    std::string list = map.items[at - 1].text;
    size_t count = 0;
    for (; is_rest(at + count); ++count) list += ", " + map.keys[at + count].text;
    if (count > 0)
      problems_.push_back({fmt::format("unknown key `{}`", excerpt(prefix + map.keys[at].text)),
                           place_in(file_, map.keys[at].mark),
                           fmt::format("write a list in brackets: {}: [{}]", map.keys[at - 1].text,
                                       excerpt(list))});
    return count;
  }

  /// Reports `train.epochs: 1`: a path of keys in an override, but a single key in YAML.
  void report_dots(const std::string& key, const MapKey& name) {
    std::string below, rest = excerpt(key);
    for (size_t dot = rest.rfind('.'); dot != std::string::npos; dot = rest.rfind('.')) {
      below += fmt::format("`{}:` indented below ", rest.substr(dot + 1));
      rest.resize(dot);
    }
    problems_.push_back({fmt::format("unknown key `{}`", excerpt(key)), place_in(file_, name.mark),
                         fmt::format("write {}`{}:`", below, rest)});
  }

  /// All keys of the section are none.
  void add_none(const std::string& section, const MapKey& name, Value value) {
    value.text = "none";
    for (const Field& field : fields_.fields)
      if (field.section() == section) add(field.key, name, value);
  }

  void add(const std::string& key, const MapKey& name, const Value& value) {
    const Mark value_mark = value.mark.line > 0 ? value.mark : name.mark;
    assignments.push_back({key, value, Layer::kRun, place_in(file_, name.mark),
                           place_in(file_, value_mark),
                           fmt::format("{}:{}", file_, name.mark.line)});
  }

  const std::string& file_;
  const Binding& fields_;
  Problems& problems_;
};

}  // namespace

bool says_nothing_is_offloaded(const Assignment& assignment) {
  const Value& value = assignment.value;
  return assignment.key == "parallel.offload" && value.kind == Value::Kind::kScalar &&
         (value.text == "none" || parse_bool(value.text) == false);
}

std::vector<Assignment> flatten(const Value& document, const std::string& file,
                                const Binding& fields, Problems& problems) {
  if (document.kind == Value::Kind::kNull) return {};
  if (document.kind != Value::Kind::kMap) {
    throw ConfigProblems(
        {{fmt::format("the file is {}, not a map of sections", describe(document)),
          place_in(file, document.mark), "begin with `model:` and its keys indented below it"}});
  }
  Flattener flattener(file, fields, problems);
  flattener.walk(document, "");
  return std::move(flattener.assignments);
}

}  // namespace sftrun::config
