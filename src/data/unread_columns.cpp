#include "unread_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

#include "judgement.h"
#include "nulls.h"
#include "record_media.h"
#include "sftrun/config/objectives.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/yaml_name.h"

namespace sftrun::data {
namespace {

bool holds_something(const Json& record, const char* column) {
  const Json* value = value_of(record, column);
  return value != nullptr && !value->empty() && *value != Json("");
}

/// What would weigh a whole record; turns alone can be left out.
constexpr std::array<std::string_view, 7> kRecordFlags = {
    "train", "weight", "loss", "loss_weight", "loss_mask", "loss_scale", "sample_weight"};

constexpr std::array<std::string_view, 4> kVisualColumns = {"images", "image", "videos", "video"};

constexpr NameList kImageEndings = {".jpg", ".jpeg", ".png", ".webp"};
constexpr NameList kVideoFileEndings = {".mp4", ".mov", ".avi", ".mkv", ".webm"};
constexpr NameList kFeatureEndings = {".npy", ".safetensors"};

bool names_file(const Json& value, const NameList& endings) {
  constexpr size_t kLongestPath = 4096;
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > kLongestPath || text.find('\n') != std::string::npos) return false;
  const std::string lower = ascii_lower(text);
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

bool is_encoded_image(const Json& value) {
  if (!is_bytes(value)) return false;
  const std::string_view bytes = bytes_of(value);
  return bytes.starts_with("\x89PNG") || bytes.starts_with("\xFF\xD8\xFF") || is_webp_file(bytes);
}

/// A file of this kind, or a list of them.
/// @param endings of such files' names
bool holds_files(const Json& value, const NameList& endings, bool are_images) {
  const auto holds = [&](const Json& one) { return holds_files(one, endings, are_images); };
  if (value.is_array()) return !value.empty() && std::all_of(value.begin(), value.end(), holds);
  if (!value.is_object())
    return names_file(value, endings) || (are_images && is_encoded_image(value));
  if (const Json* bytes = value_of(value, "bytes"); bytes != nullptr && is_bytes(*bytes))
    return are_images && is_encoded_image(*bytes);
  const Json *path = value_of(value, "path"), *url = value_of(value, "url");
  return (path != nullptr && names_file(*path, endings)) ||
         (url != nullptr && names_file(*url, endings));
}

bool is_record_flag(const std::string& column) {
  return std::find(kRecordFlags.begin(), kRecordFlags.end(), column) != kRecordFlags.end();
}

/// The lists of turns that this format reads.
std::vector<const Json*> turn_lists(const Json& record, RecordFormat format) {
  const config::RecordFormatInfo& info = config::format_info(format);
  std::vector<const Json*> lists;
  for (const std::string_view column : info.turns) {
    const Json* turns = value_of(record, column.data());
    if (turns != nullptr && turns->is_array()) lists.push_back(turns);
    if (info.reads_one_list && turns != nullptr) break;
  }
  return lists;
}

bool is_read_of_turns(const std::string& key, bool is_sharegpt, RecordFormat format,
                      config::ExampleForm form) {
  constexpr std::array<std::string_view, 4> kOfShareGpt = {"from", "value", "train", "weight"};
  // Where the template omits calls or reasoning, `LeftOut` says so.
  constexpr std::array<std::string_view, 14> kOfMessages = {
      "role", "content",           "train",         "weight", "tool_calls", "tool_call_id",
      "name", "reasoning_content", "function_call", "id",     "reasoning",  "thinking",
      "type", "tool_responses"};
  const auto among = [&](const auto& keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  const bool takes_whole_answers =
      config::format_info(format).is_pair || form != config::ExampleForm::kAnswer;
  if (takes_whole_answers && (key == "train" || key == "weight")) return false;
  return is_sharegpt ? among(kOfShareGpt) : among(kOfMessages);
}

/// Whether the template has the word where it may be a key: `message.word`, or `word` in quotes.
bool names(std::string_view source, const std::string& word) {
  for (size_t at = source.find(word); at != std::string_view::npos;
       at = source.find(word, at + 1)) {
    const char before = at == 0 ? '\0' : source[at - 1];
    const size_t end = at + word.size();
    const char after = end == source.size() ? '\0' : source[end];
    const bool is_quoted = (before == '\'' || before == '"') && after == before;
    if (is_quoted || (before == '.' && !is_word_char(after))) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> unread_columns(const Json& record, RecordFormat format,
                                        const RecordShape& shape, config::ExampleForm form) {
  std::vector<const char*> columns = {"images", "image", "videos", "video", "audios", "features"};
  const auto also = [&](std::initializer_list<const char*> more) {
    columns.insert(columns.end(), more);
  };
  const config::RecordFormatInfo& info = config::format_info(format);
  if (info.is_text) return {};
  also({"history"});
  // Where data.fields maps one of them, the other is left out knowingly.
  if (!info.is_pair && holds_something(record, "chosen") && holds_something(record, "rejected"))
    also({"chosen", "rejected"});
  const bool is_text = std::holds_alternative<PlainText>(shape);
  if (is_text) also({"tools", "chat_template_kwargs"});
  if (!info.optional.contains("system")) also({"system"});
  if (info.is_pair)
    also({"input"});  // of Alpaca, where a "prompt" is read in place of the question
  if (!is_text) also({"functions"});
  std::vector<std::string> found;
  for (const char* column : columns) {
    if (holds_something(record, column)) found.emplace_back(column);
  }
  // KTO's label says whether the answer is a good one: those that are not should not train.
  if (form == config::ExampleForm::kAnswer && likely_judgement(record) == false)
    found.emplace_back(label_column(record));
  for (const auto& [column, value] : record.items()) {
    const bool says_nothing = value.is_null() || value == 1 || value == true;
    if (!says_nothing && is_record_flag(column)) found.push_back(column);
  }
  return found;
}

bool is_visual_column(const std::string& column) {
  return std::find(kVisualColumns.begin(), kVisualColumns.end(), column) != kVisualColumns.end();
}

std::vector<std::string> unread_media(const Json& record, const MediaWanted& wanted) {
  static const std::vector<std::string> known = config::record_columns();
  std::vector<std::string> found;
  for (const auto& item : record.items()) {
    const std::string& column = item.key();
    const Json& value = item.value();
    const bool is_known =
        is_visual_column(column) || std::find(known.begin(), known.end(), column) != known.end();
    if (is_known || is_nothing(value)) continue;
    const auto note = [&](bool is_wanted, const char* field, const NameList& endings) {
      if (is_wanted && holds_files(value, endings, /*are_images=*/endings.contains(".png")))
        found.push_back(fmt::format("{}: {}", field, column));
    };
    note(wanted.images, "images", kImageEndings);
    note(wanted.videos, "videos", kVideoFileEndings);
    note(wanted.features, "features", kFeatureEndings);
  }
  return found;
}

std::string remark_on_media(const std::string& field) {
  const size_t end = field.find(": ");
  return fmt::format("records have \"{}\", which seems to hold {} and is not read",
                     excerpt(field.substr(end + 2)), field.substr(0, end));
}

std::string advice_on_media(const std::string& field) {
  const size_t end = field.find(": ");
  return fmt::format("data.fields: {{{}: {}}} reads it", field.substr(0, end),
                     yaml_name(excerpt(field.substr(end + 2))));
}

std::string advice_on_column(const std::string& column) {
  if (column == "history") return "earlier turns are read from \"messages\"";
  if (column == "input")
    return "write it into the prompt; behind an \"instruction\" it is read: data.fields: "
           "{instruction: COLUMN} names the column of the question";
  if (column == "system") return "write it as a message of the role system";
  if (column == "functions") return "rename it to \"tools\"";
  if (column == "tools" || column == "chat_template_kwargs")
    return "it is read only from conversations: \"messages\"";
  if (is_record_flag(column))
    return "all records have the same weight; remove those that should not be trained on";
  if (column == config::kLabelColumn || column == config::kLabelAlias)
    return fmt::format(
        "its value false says that the answer is bad; train.objective: {} reads it, else remove "
        "these records",
        config::first_objective_for(config::ExampleForm::kJudged));
  if (column == "chosen" || column == "rejected")
    return fmt::format("train.objective: {} trains on them",
                       config::first_objective_for(config::ExampleForm::kPair));
  if (column == "features") return "set model.projectors to train on features of another encoder";
  if (column == "audios") return "sound is not read";
  return "the model reads text alone, and <image> or <video> in texts stays text";
}

std::string absent_field_warning(const std::string& field) {
  return fmt::format(
      "no record that was read has a value for data.fields: {{{}}}, so it has no effect; correct "
      "the name, or remove the entry",
      excerpt(field));
}

std::vector<std::string> unread_turn_keys(const Json& record, RecordFormat format,
                                          std::string_view template_source,
                                          config::ExampleForm form) {
  std::set<std::string> unread;
  for (const Json* turns : turn_lists(record, format)) {
    for (const Json& turn : *turns) {
      if (!turn.is_object()) continue;
      const bool is_sharegpt = value_of(turn, "role") == nullptr;  // only four of its keys are read
      for (const auto& [key, value] : turn.items()) {
        if (is_read_of_turns(key, is_sharegpt, format, form) || !holds_something(turn, key.c_str()))
          continue;
        if (!is_sharegpt && names(template_source, key)) continue;
        if (!template_source.empty() || is_loss_flag(key)) unread.insert(key);
      }
    }
  }
  return {unread.begin(), unread.end()};
}

std::string advice_on_loss_flag(config::ExampleForm form) {
  if (form == config::ExampleForm::kAnswer)
    return "\"train\": false or \"weight\": 0 removes the labels of a turn, and other weights "
           "count "
           "in the loss; data.fields: {train: KEY} or {weight: KEY} reads another key in the same "
           "way";
  const char* treated = form == config::ExampleForm::kPair     ? "compared"
                        : form == config::ExampleForm::kJudged ? "judged"
                                                               : "rewarded";
  return fmt::format("with train.objective {} the whole answers are {}: remove it",
                     config::objectives_for(form), treated);
}

bool is_loss_flag(const std::string& key) {
  const std::string lower = ascii_lower(key);
  constexpr std::array<std::string_view, 4> kWords = {"loss", "train", "weight", "mask"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

bool has_null_arguments(const Json& record, RecordFormat format) {
  const Json* tools = value_of(record, "tools");
  if (tools != nullptr && has_null_member(*tools)) return true;
  for (const Json* turns : turn_lists(record, format)) {
    for (const Json& turn : *turns) {
      const Json* calls = value_of(turn, "tool_calls");
      if (calls == nullptr) continue;
      for (const Json& call : *calls) {
        const Json* function = value_of(call, "function");
        const Json* arguments = value_of(function != nullptr ? *function : call, "arguments");
        if (arguments != nullptr && has_null_member(*arguments)) return true;
      }
    }
  }
  return false;
}

bool has_two_systems(const Json& record, RecordFormat format) {
  if (!config::format_info(format).optional.contains("system") ||
      !holds_something(record, "system"))
    return false;
  for (const Json* turns : turn_lists(record, format)) {
    for (const Json& turn : *turns) {
      const Json* role = value_of(turn, "role");
      if (role == nullptr) role = value_of(turn, "from");
      if (role != nullptr && *role == "system") return true;
    }
  }
  return false;
}

}  // namespace sftrun::data
