#include "likely_columns.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "nulls.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

/// A column whose name contains one of `words`: "Question", "user_query".
std::string column_like(const Json& record, const std::vector<std::string_view>& words) {
  for (const std::string_view word : words) {
    for (const auto& [key, value] : record.items()) {
      if (!value.is_null() && ascii_lower(key).find(word) != std::string::npos) return key;
    }
  }
  return {};
}

/// A column with a list of turns, which tables store as JSON text.
std::string column_of_turns(const Json& record) {
  for (const auto& [key, value] : record.items()) {
    const bool is_text = value.is_string() && value.get_ref<const std::string&>().starts_with('[');
    const Json turns = is_text ? parse_json_text(value.get_ref<const std::string&>()) : value;
    if (!turns.is_array() || turns.empty() || !turns[0].is_object()) continue;
    if (value_of(turns[0], "role") != nullptr || value_of(turns[0], "from") != nullptr) return key;
  }
  return {};
}

/// The columns that are probably meant; empty: none looks like it.
struct LikelyColumns {
  std::string turns, prompt, completion, text;
  bool is_pair() const { return !prompt.empty() && !completion.empty() && prompt != completion; }
};

LikelyColumns likely_columns(const Json& record) {
  return {.turns = column_of_turns(record),
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

/// "rename "question" to "prompt" and "answer" to "completion""
std::string renames(const std::vector<std::pair<std::string, std::string>>& from_to) {
  std::vector<std::string> each;
  for (const auto& [from, to] : from_to) {
    if (from != to) each.push_back(fmt::format("\"{}\" to \"{}\"", excerpt(from), to));
  }
  return "rename " + join(each, " and ");
}

constexpr const char* kKnown =
    "known: \"messages\"; \"conversations\"; \"prompt\" and \"completion\"; \"instruction\" and "
    "\"output\"; \"text\"";
constexpr const char* kKnownPrompts =
    "known: \"messages\"; \"conversations\"; \"prompt\"; \"instruction\" with or without "
    "\"input\"; \"text\"";

}  // namespace

std::string advise_fields(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string fields = "prompt: COLUMN, completion: COLUMN";
  if (!likely.turns.empty())
    fields = "messages: " + likely.turns;
  else if (likely.is_pair())
    fields = fmt::format("prompt: {}, completion: {}", likely.prompt, likely.completion);
  else if (!likely.text.empty())
    fields = "text: " + likely.text;
  return fmt::format("name the columns: data.fields: {{{}}}; {}", fields, kKnown);
}

std::string advise_keys(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string advice = "rename the keys";
  if (!likely.turns.empty())
    advice = renames({{likely.turns, "messages"}});
  else if (likely.is_pair())
    advice = renames({{likely.prompt, "prompt"}, {likely.completion, "completion"}});
  else if (value_of(record, "prompt") != nullptr)
    advice = "add the answer as \"completion\"";
  else if (value_of(record, "instruction") != nullptr)
    advice = "add the answer as \"output\"";
  else if (!likely.text.empty())
    advice = renames({{likely.text, "text"}});
  return fmt::format("{}; {}", advice, kKnown);
}

std::string advise_prompt_keys(const Json& record) {
  if (const std::string advice = advise_delimiter(record); !advice.empty()) return advice;
  const LikelyColumns likely = likely_columns(record);
  std::string advice = "rename the keys";
  if (!likely.turns.empty())
    advice = renames({{likely.turns, "messages"}});
  else if (!likely.prompt.empty())
    advice = renames({{likely.prompt, "prompt"}});
  else if (!likely.text.empty())
    advice = renames({{likely.text, "text"}});
  return fmt::format("{}; {}", advice, kKnownPrompts);
}

}  // namespace sftrun::data
