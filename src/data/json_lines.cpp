#include "sftrun/data/json_lines.h"

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun::data {
namespace {

constexpr size_t kMaxDepth = 512;  // more than data need, and safe for the stack

/// The number of nlohmann's "[…] number overflow parsing '1e400'".
std::string number_in(const Json::out_of_range& error) {
  const std::string_view text = error.what();
  const size_t begin = text.find('\''), end = text.rfind('\'');
  return begin == end ? std::string() : std::string(text.substr(begin + 1, end - begin - 1));
}

/// Whether text ends within a character: it was cut there.
bool is_cut_character(std::string_view end) {
  const auto lead = static_cast<uint8_t>(end.front());
  const size_t num_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  return end.size() < num_bytes &&
         std::all_of(end.begin() + 1, end.end(), [](char c) { return is_continuation_byte(c); });
}

/// For a record that does not end in its line.
const char* fix_for_cut(std::string_view line, std::string_view reason, NextLine next) {
  const bool is_in_string = reason.find("missing closing quote") != std::string_view::npos;
  const bool may_go_on = line == "{" || line.ends_with(',') || line.ends_with('[');
  if (next == NextLine::kOther && is_in_string)
    return "a text continues in the next line: write its line breaks as \\n, and the record on one "
           "line";
  if (next == NextLine::kOther ||
      ((next == NextLine::kUnknown || next == NextLine::kNoLine) && may_go_on))
    return "write each record on one line: jq -c . in.json > out.jsonl";
  return next == NextLine::kNone
             ? "the file ends within this record: write or copy it again, or remove its last line"
             : "the record is cut off: complete it, or remove its line";
}

/// @param column of the refused byte, from 1
const char* fix_for(std::string_view line, std::string_view reason, size_t column, NextLine next) {
  const std::string_view rest = line.substr(std::min(column - (column > 0 ? 1 : 0), line.size()));
  if (rest.starts_with("NaN") || rest.starts_with("Infinity")) {
    return "JSON has neither NaN nor Infinity, although Python writes them: use null; "
           "json.dumps(…, allow_nan=False) finds them";
  }
  if (reason.find("surrogate") != std::string_view::npos) {
    return "half of a surrogate pair (\\ud8…), which Python writes for text that was cut or "
           "not decoded: correct the text with "
           "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')";
  }
  if (rest == "," && column > 1 && line[column - 2] == '}') {
    return "remove the comma behind each record: sed 's/},$/}/' in.jsonl > out.jsonl; or write one "
           "JSON array: [{…}, {…}]";
  }
  if (line.starts_with('{') && rest.empty()) return fix_for_cut(line, reason, next);
  if (line.starts_with('{')) {
    return reason.find("expected end of input") == std::string_view::npos
               ? "correct this record, or remove it"
               : "write one JSON object per line";
  }
  return "the file must have one JSON object per line, not CSV or plain text; to convert lines of "
         "text: "
         "jq -Rc '{text: .}' in.txt > out.jsonl";
}

/// Whether all elements are turns of a conversation.
bool are_turns(const Json& list) {
  return !list.empty() && std::all_of(list.begin(), list.end(), [](const Json& turn) {
    return turn.is_object() && ((turn.contains("role") && turn.contains("content")) ||
                                (turn.contains("from") && turn.contains("value")));
  });
}

/// What to write for a value that is no record.
std::string fix_for_value(const Json& value, bool is_element) {
  const char* each = is_element ? "'.[] | " : "'";
  const char* files = is_element ? "in.json > out.jsonl" : "in.jsonl > out.jsonl";
  if (value.is_string())
    return fmt::format("write each text as {{\"text\": …}}: jq -c {}{{text: .}}' {}", each, files);
  if (value.is_array() && are_turns(value)) {
    const char* key = value.front().contains("role") ? "messages" : "conversations";
    return fmt::format("write each conversation as {{\"{0}\": […]}}: jq -c {1}{{{0}: .}}' {2}", key,
                       each, files);
  }
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return fmt::format(
        "name the values; a question and its answer: jq -c {}{{prompt: .[0], completion: .[1]}}' "
        "{}",
        each, files);
  }
  if (value.is_array() && !value.empty() && value.front().is_object())
    return fmt::format("write one JSON object per line: jq -c {}.[]' {}", each, files);
  return is_element ? "write JSON objects into the array, such as {\"text\": …}"
                    : "write one JSON object per line, such as {\"text\": …}";
}

[[noreturn]] void refuse_value(const Json& value, const std::string& where, bool is_element) {
  throw DataError(
      is_element ? fmt::format("the JSON array has an element of type {}; each record must be a "
                               "JSON object",
                               json_type(value))
                 : fmt::format("a record must be a JSON object, not {}", json_type(value)),
      where, fix_for_value(value, is_element));
}

}  // namespace

Json parse_json_line(std::string_view line, const std::string& where, NextLine next) {
  if (const size_t invalid = find_invalid_utf8(line); invalid != std::string_view::npos) {
    const std::string place = fmt::format("{}:{}", where, invalid + 1);
    if (is_cut_character(line.substr(invalid)))
      throw DataError("invalid UTF-8: the line ends within a character", place,
                      fix_for_cut(line, "", next));
    throw DataError("invalid UTF-8", place,
                    "convert the file: iconv -f latin1 -t utf8 (or whatever its encoding is)");
  }
  // The parser treats a NUL as the end, and would ignore the rest.
  if (const size_t nul = line.find('\0'); nul != std::string_view::npos) {
    throw DataError("malformed JSON: a NUL byte", fmt::format("{}:{}", where, nul + 1),
                    "the file is damaged or not text: write it again");
  }
  const JsonShape shape = json_shape(line, kMaxDepth);
  if (shape.depth > kMaxDepth)
    throw DataError(fmt::format("JSON nested deeper than {} levels", kMaxDepth), where,
                    "remove that value");
  if (const std::string excess = json_excess(shape); !excess.empty())
    throw DataError(excess, where, "remove it");
  try {
    Json record = parse_exact_json(line);
    if (record.is_object()) return record;
    refuse_value(record, where, next == NextLine::kNoLine);
  } catch (const Json::parse_error& error) {
    const std::string reason = json_reason(error);
    throw DataError("malformed JSON: " + reason, fmt::format("{}:{}", where, error.byte),
                    fix_for(line, reason, error.byte, next));
  } catch (const Json::out_of_range& error) {
    throw DataError(fmt::format("the number {} is beyond what a 64-bit float can hold",
                                excerpt(number_in(error))),
                    where, "write it as a string, or remove it");
  }
}

Json parse_exact_text(std::string_view text) {
  const bool is_readable =
      text.find('\0') == std::string_view::npos && is_modest_json(text, kMaxDepth);
  if (!is_readable) return Json(Json::value_t::discarded);
  try {
    return parse_exact_json(text);
  } catch (const Json::exception&) {
    return Json(Json::value_t::discarded);
  }
}

Json parse_json_text(std::string_view text) {
  Json value = parse_exact_text(text);
  round_fractions(value);
  return value;
}

std::string extend_json_line(std::string_view line, const Json& record, const Json& additions) {
  bool replaces = false;
  for (const auto& [key, value] : additions.items()) replaces = replaces || record.contains(key);
  if (replaces) {
    Json extended = parse_exact_json(line);  // the record's fractions may be rounded
    for (const auto& [key, value] : additions.items()) extended[key] = value;
    return to_json_text(extended);
  }
  if (additions.empty()) return std::string(line);
  std::string extended(trim(line.substr(0, line.rfind('}'))));
  if (!record.empty()) extended += ", ";
  extended += std::string_view(to_json_text(additions)).substr(1);
  return extended;
}

}  // namespace sftrun::data
