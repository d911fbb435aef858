#include "record_features.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "media_path.h"
#include "nulls.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/input_file.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

constexpr const char* kColumn = "features";
constexpr const char* kFeaturesPartFix =
    R"(write {"type": "features", "path": "a.npy"}, with a path relative to the record's file)";

/// Characters of a private use area around the number: no template changes them, and no text has them by accident.
constexpr std::string_view kMarkBegin = "\xEE\x97\xB0",
                           kMarkEnd = "\xEE\x97\xB1";  // U+E5F0, U+E5F1

std::string text_of_mark(size_t number) {
  return fmt::format("{}{}{}", kMarkBegin, number, kMarkEnd);
}

bool is_user(const Json& turn) {
  for (const char* key : {"role", "from"}) {
    const Json* role = value_of(turn, key);
    if (role != nullptr && (*role == "user" || *role == "human")) return true;
  }
  return false;
}

}  // namespace

bool is_features_part(const Json& part) {
  const Json* type = part.is_object() ? value_of(part, "type") : nullptr;
  return type != nullptr && *type == kColumn;
}

void refuse_features_part(const std::string& name, const std::string& where) {
  throw RecordError(name + " has features, and the model has no projector for them", where,
                    "set model.projectors (docs/images.md), or remove the part",
                    "remove the part, or use a model or adapter that was trained with features");
}

void check_features_part(const Json& part, const std::string& name, const std::string& where) {
  for (const auto& [key, value] : part.items()) {
    if (key == "type" || key == "path" || key == "projector" || is_nothing(value)) continue;
    throw DataError(
        fmt::format("{} has \"{}\" beside its features, which is not read", name, excerpt(key)),
        where, "remove the key, or the record");
  }
}

std::vector<FeatureMark> find_feature_marks(std::string_view text) {
  std::vector<FeatureMark> marks;
  for (size_t at = text.find(kMarkBegin); at != std::string_view::npos;
       at = text.find(kMarkBegin, at + kMarkBegin.size())) {
    const size_t begin = at + kMarkBegin.size(), end = text.find(kMarkEnd, begin);
    FeatureMark mark{.begin = at};
    if (end == std::string_view::npos) continue;
    const auto [rest, code] = std::from_chars(text.data() + begin, text.data() + end, mark.number);
    if (code != std::errc() || rest != text.data() + end) continue;
    mark.size = end + kMarkEnd.size() - at;
    marks.push_back(mark);
  }
  return marks;
}

void RecordFeatures::refuse(const std::string& what, const std::string& fix) const {
  throw DataError(what, place_.where, fix);
}

const FeatureProjector& RecordFeatures::projector_named(const std::string& name,
                                                        const std::string& place) const {
  const std::vector<FeatureProjector>& projectors = input_.projectors;
  const auto known =
      std::find_if(projectors.begin(), projectors.end(),
                   [&](const FeatureProjector& projector) { return projector.name == name; });
  if (known != projectors.end()) return *known;
  if (name.empty() && projectors.size() == 1) return projectors.front();
  std::vector<std::string> names;
  for (const FeatureProjector& projector : projectors) names.push_back(projector.name);
  refuse(name.empty() ? fmt::format("{} does not say which projector takes the features", place)
                      : fmt::format("{} names the projector {}, which the model does not have",
                                    place, excerpt(name)),
         fmt::format(R"(write "projector": one of {})", join(names, ", ")));
}

std::string RecordFeatures::mark_of(const Json& path, const std::string& projector_name,
                                    const std::string& name) {
  const FeatureProjector& projector = projector_named(projector_name, name);
  if (!path.is_string())
    refuse(fmt::format("{} has features without a path: {}", name, json_type(path)),
           kFeaturesPartFix);
  const auto& written = path.get_ref<const std::string&>();
  const std::filesystem::path file = media_path(written, place_.folder);
  ReadMedia read;
  const bool is_new =
      place_.stamps != nullptr && place_.stamps->note(file.string(), /*is_image=*/false);
  try {
    if (is_new) place_.stamps->note_contents(written, InputFile(file));
    read.media.rows = num_feature_rows(file, projector);
  } catch (const DataError& error) {
    const std::string message = fmt::format("{}: {}", name, error.message()),
                      where = fmt::format("{}, {}", place_.where, file.string()),
                      fix = error.fix().empty() ? kFeaturesPartFix : error.fix();
    if (is_missing_below_folder(written, file)) throw MissingFileError(message, where, fix);
    throw DataError(message, where, fix);
  }
  read.media.media.path = file.string();
  read.media.projector = &projector - input_.projectors.data();
  read.media.num_tokens = projector.tokens > 0 ? projector.tokens : read.media.rows;
  read.media.feature = input_.token;
  for (int64_t i = 0; i < read.media.num_tokens; ++i) read.text += input_.text;
  media_.push_back(std::move(read));
  return text_of_mark(media_.size() - 1);
}

std::string RecordFeatures::marks_of_column(const Json& column) {
  std::string marks;
  const auto add = [&](const Json& item, const std::string& name) {
    if (!item.is_object()) {
      marks += mark_of(item, "", name);
      return;
    }
    for (const auto& [projector, path] : item.items()) marks += mark_of(path, projector, name);
  };
  if (!column.is_array()) {
    add(column, fmt::format("\"{}\"", kColumn));
  } else {
    for (size_t i = 0; i < column.size(); ++i) add(column[i], fmt::format("{}[{}]", kColumn, i));
  }
  return marks;
}

void RecordFeatures::mark_turns(Json& turns, const std::string& name) {
  for (size_t i = 0; turns.is_array() && i < turns.size(); ++i) {
    if (!turns[i].is_object()) continue;
    const auto content = turns[i].find("content");
    if (content == turns[i].end() || !content->is_array()) continue;
    for (size_t j = 0; j < content->size(); ++j) {
      Json& part = (*content)[j];
      if (!is_features_part(part)) continue;
      const std::string place = fmt::format("{}[{}].content[{}]", name, i, j);
      check_features_part(part, place, place_.where);
      const Json projector = part.value("projector", Json());
      const Json path = part.value("path", Json());
      part = {{"type", "text"},
              {"text",
               mark_of(path, projector.is_string() ? projector.get<std::string>() : "", place)}};
    }
  }
}

/// As images of columns: before the first user's text.
void RecordFeatures::put_before_text(Json& record, RecordFormat format, const std::string& marks) {
  const auto into = [&](Json& text, const char* after) {
    if (text.is_string()) text = marks + after + text.get<std::string>();
    if (text.is_array()) text.insert(text.begin(), Json{{"type", "text"}, {"text", marks}});
  };
  bool is_placed = false;
  for (const std::string_view column : config::format_info(format).turns) {
    const auto turns = record.find(std::string(column));
    if (turns == record.end() || !turns->is_array()) continue;
    const auto first = std::find_if(turns->begin(), turns->end(), [](const Json& turn) {
      return turn.is_object() && is_user(turn);
    });
    if (first == turns->end()) continue;
    for (const char* key : {"content", "value"})
      if (first->contains(key)) into((*first)[key], "\n");
    is_placed = true;
    if (column == "prompt") return;  // the answers follow it
  }
  for (const char* key : {"prompt", "instruction", "text"}) {
    if (is_placed || !record.contains(key) || !record[key].is_string()) continue;
    into(record[key], "");
    is_placed = true;
  }
  if (!is_placed)
    refuse("the record has \"features\", and no text of a user that they could precede",
           R"(write them as parts: {"type": "features", "path": "a.npy"})");
}

namespace {

bool has_mark(const Json& value) {
  if (value.is_string())
    return value.get_ref<const std::string&>().find(kMarkBegin) != std::string::npos;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_mark);
}

}  // namespace

Json RecordFeatures::mark(const Json& record, RecordFormat format) {
  if (has_mark(record))
    refuse(
        "the record has the character U+E5F0 of Unicode's private area, which stands for features",
        "remove the character");
  Json marked = record;
  for (const std::string_view column : config::format_info(format).turns)
    if (const auto turns = marked.find(std::string(column)); turns != marked.end())
      mark_turns(*turns, std::string(column));
  const auto column = marked.find(kColumn);
  if (column == marked.end() || is_nothing(*column)) return marked;
  const std::string marks = marks_of_column(*column);
  marked.erase(kColumn);
  put_before_text(marked, format, marks);
  return marked;
}

const ReadMedia& RecordFeatures::of(const FeatureMark& mark) const {
  SFTRUN_CHECK(mark.number < media_.size());  // records with marks of their own are refused
  return media_[mark.number];
}

}  // namespace sftrun::data
