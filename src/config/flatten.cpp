#include <fmt/format.h>

#include "known_keys.h"
#include "layers.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

std::string place_in(const std::string& file, Mark mark) {
  return fmt::format("{}:{}:{}", file, mark.line, mark.column);
}

class Flattener {
 public:
  Flattener(const std::string& file, const Binding& fields, Problems& problems)
      : file_(file), fields_(fields), problems_(problems) {}

  void walk(const Value& map, const std::string& section) {
    for (size_t i = 0; i < map.items.size(); ++i) {
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
    problems_.push_back({fmt::format("`{}` is {}; it takes a map", key, describe(value)),
                         place_in(file_, value.mark),
                         fmt::format("indent its keys below `{}:`", key)});
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
