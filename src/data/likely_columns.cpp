#include "likely_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "nulls.h"
#include "sftrun/config/record_formats.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/yaml_name.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

bool is_number_like(const Json& value) {
  return value.is_number() || value.is_boolean();
}

/// One element of such a list (token ids, an embedding, labels) is no text.
bool is_list_of_numbers(const Json& value) {
  return value.is_array() && !value.empty() && is_number_like(value[0]);
}

/// The same, or its JSON text, as tables without lists store it.
bool holds_numbers(const Json& value) {
  const bool is_text = value.is_string() && value.get_ref<const std::string&>().starts_with('[');
  return is_list_of_numbers(is_text ? parse_json_text(value.get_ref<const std::string&>()) : value);
}

/// The first text that `path` or what is inside it leads to; empty: none, or a list of turns.
std::string text_within(const std::string& path, const Json& value, int levels) {
  if (value.is_string() || is_number_like(value)) return path;
  if (levels == 0 || is_list_of_numbers(value)) return {};
  if (value.is_array() && !value.empty()) return text_within(path + ".0", value[0], levels - 1);
  if (!value.is_object() || value_of(value, "role") != nullptr ||
      value_of(value, "from") != nullptr)
    return {};
  for (const char* usual : {"text", "value", "content", "answer"}) {
    const Json* inner = value_of(value, usual);
    if (inner == nullptr) continue;
    std::string found = text_within(fmt::format("{}.{}", path, usual), *inner, levels - 1);
    if (!found.empty()) return found;
  }
  return {};
}

/// The text of a column whose name contains one of `words`: "Question", "answers.text.0". A list
/// of turns is named as it is, and a list of numbers never.
std::string column_like(const Json& record, const std::vector<std::string_view>& words) {
  for (const std::string_view word : words) {
    for (const auto& [key, value] : record.items()) {
      if (value.is_null() || holds_numbers(value)) continue;
      if (ascii_lower(key).find(word) == std::string::npos) continue;
      const std::string path = path_of_text(key, value);
      return path.empty() ? key : path;
    }
  }
  return {};
}

/// The key of a turn that is called so; empty: none.
std::string key_among(const Json& turn, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (const auto& [key, value] : turn.items())
      if (ascii_lower(key) == name && value.is_string()) return key;
  }
  return {};
}

/// A column with a list of turns, and what the turns call the role and the text.
struct LikelyTurns {
  std::string column, role, content;  ///< column is empty: there is none
  bool are_renamed() const {
    return !column.empty() && !role.empty() && !content.empty() &&
           !(role == "role" && content == "content") && !(role == "from" && content == "value");
  }
};

/// Tables store turns as JSON text.
LikelyTurns likely_turns(const Json& record) {
  for (const auto& [key, value] : record.items()) {
    const bool is_text = value.is_string() && value.get_ref<const std::string&>().starts_with('[');
    const Json turns = is_text ? parse_json_text(value.get_ref<const std::string&>()) : value;
    if (!turns.is_array() || turns.empty() || !turns[0].is_object()) continue;
    const Json& turn = turns[0];
    LikelyTurns found{
        .column = key,
        .role = key_among(turn, {"role", "from", "speaker", "author", "sender"}),
        .content = key_among(turn, {"content", "value", "utterance", "text", "message", "body"})};
    const bool has_usual_role =
        value_of(turn, "role") != nullptr || value_of(turn, "from") != nullptr;
    if (has_usual_role || (!found.role.empty() && !found.content.empty())) return found;
  }
  return {};
}

/// The columns that are probably meant; empty: none looks like it.
struct LikelyColumns {
  LikelyTurns turns;
  std::string prompt, completion, text;
  bool is_pair() const { return !prompt.empty() && !completion.empty() && prompt != completion; }
};

LikelyColumns likely_columns(const Json& record) {
  return {.turns = likely_turns(record),
          .prompt = column_like(record, {"prompt", "question", "query", "instruction", "input"}),
          .completion = column_like(
              record, {"completion", "answer", "response", "output", "reply", "target", "label"}),
          .text = column_like(record, {"content", "document", "body", "article"})};
}

/// Advice on a table that is read with the wrong delimiter; empty: it is not.
std::string advise_delimiter(const Json& record) {
  if (record.size() != 1) return {};
  for (const char* delimiter : {";", "\t", "|"}) {
    if (record.begin().key().find(delimiter) == std::string::npos) continue;
    return fmt::format(
        "the columns seem to be separated by {}: .csv files are read with commas, "
        ".tsv files with tabs; convert the file",
        *delimiter == '\t' ? "tabs" : fmt::format("`{}`", delimiter));
  }
  return {};
}

/// "rename "question" to "prompt" and write answers.text.0 as "completion""
std::string renames(const Json& record,
                    const std::vector<std::pair<std::string, std::string>>& from_to) {
  std::vector<std::string> renamed, written;
  for (const auto& [from, to] : from_to) {
    if (from == to) continue;
    if (record.contains(from))
      renamed.push_back(fmt::format("\"{}\" to \"{}\"", excerpt(from), to));
    else
      written.push_back(fmt::format("{} as \"{}\"", excerpt(from), to));
  }
  std::vector<std::string> parts;
  if (!renamed.empty()) parts.push_back("rename " + join(renamed, " and "));
  if (!written.empty()) parts.push_back("write " + join(written, " and "));
  return join(parts, " and ");
}

/// "rename "dialogue" to "messages" and in its turns "speaker" to "role" and …"
std::string renames_of_turns(const LikelyTurns& turns) {
  std::vector<std::string> columns, keys;
  const auto rename = [](std::vector<std::string>& to_rename, const std::string& from,
                         const char* to) {
    if (from != to) to_rename.push_back(fmt::format("\"{}\" to \"{}\"", excerpt(from), to));
  };
  rename(columns, turns.column, "messages");
  if (turns.are_renamed()) {
    rename(keys, turns.role, "role");
    rename(keys, turns.content, "content");
  }
  if (!keys.empty()) columns.push_back("in its turns " + join(keys, " and "));
  return "rename " + join(columns, " and ");
}

/// Two ways to read a question and its answer: data.fields or keys for each.
std::string either_way(const std::string& rendered, const std::string& raw) {
  return fmt::format("{} (the model's chat template, if it has one), or {} (raw text)", rendered,
                     raw);
}

/// A column as `data.fields` names it. Placeholders stay as they are.
std::string field_name(const std::string& column) {
  return column == "COLUMN" ? column : yaml_name(column);
}

/// "{messages: dialogue, role: speaker, content: text}"
std::string fields_of_turns(const LikelyTurns& turns) {
  if (!turns.are_renamed()) return fmt::format("{{messages: {}}}", field_name(turns.column));
  return fmt::format("{{messages: {}, role: {}, content: {}}}", field_name(turns.column),
                     field_name(turns.role), field_name(turns.content));
}

/// "{instruction: question, output: answer}", without names that are right already
std::string fields_text(const std::vector<std::pair<std::string, std::string>>& ours_and_theirs) {
  std::vector<std::string> fields;
  for (const auto& [ours, theirs] : ours_and_theirs)
    if (ours != theirs) fields.push_back(fmt::format("{}: {}", ours, field_name(theirs)));
  return fmt::format("{{{}}}", join(fields, ", "));
}

std::string fields_of_pair(const std::string& question, const std::string& answer) {
  return either_way(fields_text({{"instruction", question}, {"output", answer}}),
                    fields_text({{"prompt", question}, {"completion", answer}}));
}

/// The keys of all formats of one answer: "known: "messages"; "prompt" and "completion""
std::string known_keys() {
  return "known: " + join(keys_of_formats(), "; ");
}

/// The keys of their prompts.
std::string known_prompts() {
  std::vector<std::string> prompts;
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    if (info.is_pair || info.is_sampled || info.is_retrieval) continue;
    const bool has_input = info.optional.contains("input");
    prompts.push_back(fmt::format("\"{}\"{}", *info.columns.begin(),
                                  has_input ? " with or without \"input\"" : ""));
  }
  return "known: " + join(prompts, "; ");
}

}  // namespace

std::string path_of_text(const std::string& column, const Json& value) {
  constexpr int kLevels = 3;
  return text_within(column, value, kLevels);
}

bool is_tokenised(const Json& record) {
  const auto is_column_of_ids = [&](const auto& column) {
    return ascii_lower(column.key()).find("ids") != std::string::npos &&
           holds_numbers(column.value());
  };
  const auto columns = record.items();
  if (std::none_of(columns.begin(), columns.end(), is_column_of_ids)) return false;
  const LikelyColumns likely = likely_columns(record);
  return likely.turns.column.empty() && !likely.is_pair() && likely.text.empty();
}

std::string advise_fields(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  if (likely.turns.column == "prompt" && !likely.turns.are_renamed())
    return fmt::format(
        "add the answer as \"completion\" (\"\" where the student writes all answers: "
        "train.rollouts.share 1); {}",
        known_keys());
  std::string fields = fields_of_pair("COLUMN", "COLUMN");
  if (!likely.turns.column.empty())
    fields = fields_of_turns(likely.turns);
  else if (likely.is_pair())
    fields = fields_of_pair(likely.prompt, likely.completion);
  else if (!likely.text.empty())
    fields = fmt::format("{{text: {}}}", field_name(likely.text));
  return fmt::format("name the columns: data.fields: {}; {}", fields, known_keys());
}

std::string advise_keys(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string advice = "rename the keys";
  if (!likely.turns.column.empty())
    advice = renames_of_turns(likely.turns);
  else if (likely.is_pair())
    advice =
        either_way(renames(record, {{likely.prompt, "instruction"}, {likely.completion, "output"}}),
                   renames(record, {{likely.prompt, "prompt"}, {likely.completion, "completion"}}));
  else if (value_of(record, "prompt") != nullptr)
    advice = "add the answer as \"completion\"";
  else if (value_of(record, "instruction") != nullptr)
    advice = "add the answer as \"output\"";
  else if (!likely.text.empty())
    advice = renames(record, {{likely.text, "text"}});
  return fmt::format("{}; {}", advice, known_keys());
}

std::string advise_prompt_fields(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string fields = fields_text({{"prompt", likely.prompt.empty() ? "COLUMN" : likely.prompt}});
  if (!likely.turns.column.empty()) fields = fields_of_turns(likely.turns);
  return fmt::format("name the column: data.fields: {}; {}", fields, known_prompts());
}

std::string advise_prompt_keys(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string advice = "rename the keys";
  if (!likely.turns.column.empty())
    advice = renames_of_turns(likely.turns);
  else if (!likely.prompt.empty())
    advice = renames(record, {{likely.prompt, "prompt"}});
  else if (!likely.text.empty())
    advice = renames(record, {{likely.text, "text"}});
  return fmt::format("{}; {}", advice, known_prompts());
}

}  // namespace sftrun::data
