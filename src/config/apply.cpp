#include <fmt/format.h>

#include <algorithm>

#include "known_keys.h"
#include "layers.h"
#include "parse_field.h"
#include "sftrun/core/read_limits.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

class Applier {
 public:
  Applier(Binding& fields, LoadedConfig& loaded, Problems& problems)
      : fields_(fields), loaded_(loaded), problems_(problems) {}

  void apply(const Assignment& given) {
    const Assignment assignment = with_main_key(given);
    if (Field* field = fields_.find(assignment.key)) {
      set(*field, assignment);
    } else if (Field* object = find_object(assignment.key)) {
      set_inside(*object, assignment);
    } else if (has_main_keys(assignment.key) && assignment.value.kind == Value::Kind::kMap) {
      apply_each(assignment);
    } else if (const UnsupportedKey* later = find_unsupported_key(assignment.key)) {
      answer_later(*later, assignment);
    } else if (says_nothing_is_offloaded(assignment)) {
      for (Field& one : fields_.fields)
        if (one.section() == assignment.key) set(one, inside(assignment, one.key));
    } else if (fields_.has_section(assignment.key) && assignment.value.kind == Value::Kind::kNull) {
      reset_section(assignment);
    } else if (fields_.has_section(assignment.key)) {
      problems_.push_back({fmt::format("`{}` is a section, not a key", assignment.key),
                           assignment.place, fix_of_section(assignment)});
    } else {
      // Suggestions compare the key with every existing key.
      const bool is_shown = problems_.size() < ReadLimits().problems;
      problems_.push_back({fmt::format("unknown key `{}`", excerpt(assignment.key)),
                           assignment.place,
                           is_shown ? suggest_key(assignment.key, assignment.value, fields_) : ""});
    }
  }

 private:
  static Assignment with_main_key(Assignment assignment) {
    assignment.key = main_key(assignment.key);
    return assignment;
  }

  /// An override of several keys at once, as a file writes them: {patience: 3}.
  void apply_each(const Assignment& given) {
    for (size_t i = 0; i < given.value.items.size(); ++i) {
      Assignment one = given;
      one.key = fmt::format("{}.{}", given.key, given.value.keys[i].text);
      one.value = given.value.items[i];
      apply(one);
    }
  }

  static Assignment inside(Assignment assignment, const std::string& key) {
    assignment.key = key;
    assignment.value = Value::scalar("none");
    return assignment;
  }

  void set(Field& field, const Assignment& assignment) {
    if (const std::string word = null_path(field, assignment.value); !word.empty()) {
      field.assign(Value::scalar(word));
    } else if (assignment.value.kind == Value::Kind::kNull) {
      field.reset();
    } else if (const auto complaint = field.assign(assignment.value)) {
      report(field, *complaint, assignment);
      return;
    }
    note(assignment, field.type == FieldType::kChoice ? field.get() : to_json(assignment.value));
  }

  /// As in a file, a section without a value has the defaults of all its keys: what was set before is undone.
  void reset_section(const Assignment& assignment) {
    const std::string prefix = assignment.key + ".";
    const auto is_inside = [&](const std::string& key) { return key.starts_with(prefix); };
    for (Field& field : fields_.fields)
      if (is_inside(field.key)) field.reset();
    std::erase_if(loaded_.places, [&](const auto& place) { return is_inside(place.first); });
    std::erase_if(loaded_.overrides, [&](const Override& old) { return is_inside(old.key); });
    note(assignment, nullptr);
  }

  /// "null" or "~" for a path, which says that there is none. A value that is left out means the default.
  static std::string null_path(const Field& field, const Value& value) {
    const bool is_null = value.kind == Value::Kind::kNull && !value.text.empty();
    return is_null && field.is_path() ? value.text : "";
  }

  void report(const Field& field, const Complaint& complaint, const Assignment& assignment) {
    std::string message = fmt::format("`{}` {}", field.key, complaint.what);
    if (complaint.show_takes) message += "; it takes " + field.takes();
    std::string fix =
        complaint.fix.empty() ? fix_by_other_key(field, assignment.value) : complaint.fix;
    if (fix.empty()) fix = fmt::format("write, for example, {}: {}", field.leaf(), field.example);
    problems_.push_back({message, assignment.value_place, fix});
  }

  /// transformers 5 has one key for steps and shares of the warm-up. "": no other key takes the
  /// value.
  static std::string fix_by_other_key(const Field& field, const Value& value) {
    const auto number =
        value.kind == Value::Kind::kScalar ? parse_double(value.text) : std::optional<double>();
    if (!number || *number <= 0) return {};
    if (field.key == "train.warmup_steps" && *number < 1)
      return fmt::format("a share of all steps is train.warmup_ratio: {}", value.text);
    if (field.key == "train.warmup_ratio" && *number > 1)
      return fmt::format("a number of steps is train.warmup_steps: {}", value.text);
    return {};
  }

  /// Sets a key inside a field that is a map: data.chat_template_kwargs.enable_thinking=false.
  void set_inside(Field& object, const Assignment& assignment) {
    if (const auto complaint = check_numbers(assignment.value)) {
      problems_.push_back({fmt::format("`{}` {}", excerpt(assignment.key), complaint->what),
                           assignment.value_place, complaint->fix});
      return;
    }
    nlohmann::ordered_json json = object.get();
    if (object.type == FieldType::kLosses && json.is_string())  // a name alone has the weight 1
      json = nlohmann::ordered_json::object({{json.get<std::string>(), 1}});
    nlohmann::ordered_json::json_pointer pointer;  // its text would give / and ~ a meaning
    for (const std::string& part : split(assignment.key.substr(object.key.size() + 1), '.'))
      pointer.push_back(part);
    try {
      json[pointer] = to_json(assignment.value);
    } catch (const nlohmann::json::exception&) {
      problems_.push_back(
          {fmt::format("`{}` is a key of a value that is not a map", excerpt(assignment.key)),
           assignment.place, fmt::format("set all of {}", object.key)});
      return;
    }
    if (const auto complaint = object.assign(value_from_json(json)))
      return report(object, *complaint, assignment);
    note(assignment, to_json(assignment.value));
  }

  Field* find_object(const std::string& key) {
    const auto found =
        std::find_if(fields_.fields.begin(), fields_.fields.end(), [&](const Field& field) {
          const bool may_be_map =
              field.type == FieldType::kObject || field.type == FieldType::kParts ||
              field.type == FieldType::kPartRates || field.type == FieldType::kProjectors ||
              field.type == FieldType::kLosses;
          return may_be_map && key.starts_with(field.key + ".");
        });
    return found == fields_.fields.end() ? nullptr : &*found;
  }

  void answer_later(const UnsupportedKey& later, const Assignment& assignment) {
    if (later.only_evaluation) {
      loaded_.warnings.push_back(fmt::format("{} has no effect: {} ({})", excerpt(assignment.key),
                                             later.instead, assignment.place));
    } else if (!is_harmless(later, assignment.value)) {
      problems_.push_back(
          {fmt::format("`{}` is not supported in this version", excerpt(assignment.key)),
           assignment.place, std::string(later.instead)});
    }
  }

  std::string fix_of_section(const Assignment& assignment) const {
    const std::string meant = setting_of_section(assignment.key);
    if (assignment.value.kind == Value::Kind::kScalar && !meant.empty())
      return fmt::format("write {}={}", meant, excerpt(assignment.value.text));
    return fmt::format("set its keys one by one: {}", first_key_of(assignment.key));
  }

  std::string first_key_of(const std::string& section) const {
    const auto found = std::find_if(fields_.fields.begin(), fields_.fields.end(),
                                    [&](const Field& field) { return field.section() == section; });
    return fmt::format("{}={}", found->key, found->example);
  }

  /// @param value what the field made of it: "cpu" of `true`
  void note(const Assignment& assignment, const nlohmann::ordered_json& value) {
    loaded_.places[assignment.key] = assignment.place;
    std::erase_if(loaded_.overrides,
                  [&](const Override& old) { return old.key == assignment.key; });
    if (assignment.layer == Layer::kRun) return;
    const bool is_scalar = assignment.value.kind == Value::Kind::kScalar;
    const bool is_word = is_scalar && value.is_string();
    loaded_.overrides.push_back({assignment.key,
                                 is_word     ? value.get<std::string>()
                                 : is_scalar ? assignment.value.text
                                             : value.dump(),
                                 assignment.source});
  }

  Binding& fields_;
  LoadedConfig& loaded_;
  Problems& problems_;
};

}  // namespace

void apply(const std::vector<Assignment>& assignments, Binding& fields, LoadedConfig& loaded,
           Problems& problems) {
  Applier applier(fields, loaded, problems);
  for (const Assignment& assignment : assignments) applier.apply(assignment);
}

}  // namespace sftrun::config
