#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fields.h"
#include "parse_field.h"
#include "sftrun/config/foreign_keys.h"
#include "sftrun/core/strings.h"

/// Reads data sets from the YAML of `data.train` and `data.val`.
namespace sftrun::config {
namespace {

constexpr std::array kDataSourceKeys = {"path",   "name",   "split",      "weight",
                                        "format", "fields", "image_root", "max_samples"};

const char* example_of(const std::string& key) {
  if (key == "weight") return "weight: 0.5 (a number above 0)";
  if (key == "max_samples") return "max_samples: 1000 (a whole number of at least 1)";
  if (key == "fields") return "fields: {prompt: question}";
  if (key == "format") return "format: messages";
  if (key == "image_root")
    return "image_root: data/images (the folder of relative paths of images)";
  if (key == "name") return "name: en (a subset of the data set)";
  return key == "split" ? "split: train" : "path: data/train.jsonl";
}

Complaint about(const std::string& key, const Complaint& complaint) {
  const std::string fix = complaint.fix.empty()
                              ? fmt::format("write, for example, {}", example_of(key))
                              : complaint.fix;
  return {fmt::format("has a data set whose `{}` {}", key, complaint.what), fix, false};
}

Complaint unknown_key(const std::string& key, const Value& value) {
  constexpr std::array kOtherNamesOfPath = {"file", "files", "data_files", "dataset"};
  constexpr std::array kOtherNamesOfName = {"subset", "config", "config_name"};
  constexpr std::array kOtherNamesOfRoot = {"media_dir", "image_folder", "image_dir",
                                            "image_base_dir"};
  const auto is_one_of = [&](const auto& names) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  const bool is_other_name =
      is_one_of(kOtherNamesOfPath) || is_one_of(kOtherNamesOfName) || is_one_of(kOtherNamesOfRoot);
  const std::string what = fmt::format("has a data set with the unknown key `{}`", excerpt(key));
  if (const ForeignKey* foreign = is_other_name ? nullptr : find_foreign_key(key))
    return {what, advice_on(*foreign, value), false};
  const std::vector<std::string> keys(kDataSourceKeys.begin(), kDataSourceKeys.end());
  const std::string near = is_one_of(kOtherNamesOfPath)   ? "path"
                           : is_one_of(kOtherNamesOfName) ? "name"
                           : is_one_of(kOtherNamesOfRoot) ? "image_root"
                                                          : nearest(key, keys);
  return {what,
          near.empty() ? fmt::format("its keys are {}", join(keys, ", "))
                       : fmt::format("did you mean `{}`?", near),
          false};
}

std::optional<Complaint> set(DataSource& source, const std::string& key, const Value& value) {
  if (value.kind == Value::Kind::kNull) return std::nullopt;
  if (key == "path") return parse_field(value, a_path(), source.path);
  if (key == "name") return parse_field(value, any(), source.name);
  if (key == "split") return parse_field(value, any(), source.split);
  if (key == "weight")
    return parse_field(value, Limits{.min = 0, .max = 1e6, .above_min = true}, source.weight);
  if (key == "format") return parse_field(value, any(), source.format);
  if (key == "fields") return parse_field(value, any(), source.fields);
  if (key == "image_root") return parse_field(value, a_path(), source.image_root);
  return parse_field(value, at_least(1), source.max_samples);
}

std::optional<Complaint> parse_source(const Value& value, DataSource& source) {
  if (value.kind == Value::Kind::kScalar) {
    if (is_none_word(value.text)) return wrong_type(value);
    return parse_field(value, a_path(), source.path);
  }
  if (value.kind != Value::Kind::kMap) return wrong_type(value);
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string& key = value.keys[i].text;
    if (std::find(kDataSourceKeys.begin(), kDataSourceKeys.end(), key) == kDataSourceKeys.end())
      return unknown_key(key, value.items[i]);
    if (const auto complaint = set(source, key, value.items[i])) return about(key, *complaint);
  }
  if (source.path.empty())
    return Complaint{"has a data set without a `path`",
                     source.name.empty() ? "write {path: data/train.jsonl, …}"
                                         : "write {path: owner/name, …}; `name` selects a subset",
                     false};
  return std::nullopt;
}

nlohmann::ordered_json to_json(const DataSource& source) {
  const DataSource plain{.path = source.path};
  if (source == plain) return source.path;
  nlohmann::ordered_json json = {{"path", source.path}};
  if (!source.name.empty()) json["name"] = source.name;
  if (!source.split.empty()) json["split"] = source.split;
  if (source.weight != plain.weight) json["weight"] = source.weight;
  if (source.format != plain.format) json["format"] = field_to_json(source.format);
  if (!source.fields.empty()) json["fields"] = source.fields;
  if (!source.image_root.empty()) json["image_root"] = source.image_root;
  if (source.max_samples) json["max_samples"] = *source.max_samples;
  return json;
}

}  // namespace

std::optional<Complaint> parse_field(const Value& value, const Limits&,
                                     std::vector<DataSource>& member) {
  std::vector<DataSource> sources;
  const bool is_list = value.kind == Value::Kind::kList;
  // An empty path means no data set: `data.val=` on the command line removes the file's value.
  if (value.kind == Value::Kind::kScalar && (value.text.empty() || is_none_word(value.text))) {
    member.clear();
    return std::nullopt;
  }
  for (const Value& item : is_list ? value.items : std::vector<Value>{value}) {
    DataSource source;
    if (const auto complaint = parse_source(item, source)) {
      if (!is_list || complaint->what.starts_with("has a data set")) return complaint;
      return Complaint{"has an item that " + complaint->what, complaint->fix,
                       complaint->show_takes};
    }
    sources.push_back(std::move(source));
  }
  member = std::move(sources);
  return std::nullopt;
}

nlohmann::ordered_json field_to_json(const std::vector<DataSource>& member) {
  if (member.empty()) return "";
  if (member.size() == 1 && !to_json(member[0]).is_object()) return to_json(member[0]);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const DataSource& source : member) json.push_back(to_json(source));
  return json;
}

std::string names_of(const std::vector<DataSource>& sources) {
  constexpr size_t kShown = 2;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(sources.size(), kShown); ++i) names.push_back(sources[i].path);
  const std::string text = join(names, ", ");
  return sources.size() <= kShown ? text
                                  : fmt::format("{} and {} more", text, sources.size() - kShown);
}

}  // namespace sftrun::config
