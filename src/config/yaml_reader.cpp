#include "sftrun/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "sftrun/core/encoding.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

// Aliases can turn a small file into a very large or infinite tree.
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 100'000;

Mark mark_of(const YAML::Mark& mark) {
  return {mark.line + 1, mark.column + 1};
}

std::string place(const std::string& name, Mark mark) {
  return mark.line > 0 ? fmt::format("{}:{}:{}", name, mark.line, mark.column) : name;
}

class Converter {
 public:
  Converter(const std::string& text, const std::string& name, Problems& problems)
      : text_(text), name_(name), problems_(problems) {}

  Value convert(const YAML::Node& node, int depth = 0) {
    Value value;
    value.mark = mark_of(node.Mark());
    if (depth > kMaxDepth || ++num_nodes_ > kMaxNodes) {
      report_size(value.mark);
      return value;
    }
    if (node.IsScalar()) {
      value.kind = Value::Kind::kScalar;
      value.text = node.Scalar();
      value.quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
      check_nul(value.text, value.mark);
    } else if (node.IsNull()) {
      value.text = null_word(node.Mark());
    } else if (node.IsSequence()) {
      value.kind = Value::Kind::kList;
      for (const auto& item : node) value.items.push_back(convert(item, depth + 1));
    } else if (node.IsMap()) {
      value.kind = Value::Kind::kMap;
      convert_map(node, value, depth);
    }
    return value;
  }

 private:
  /// The system takes a NUL for the end of a name.
  void check_nul(const std::string& text, Mark mark) {
    if (text.find('\0') == std::string::npos) return;
    problems_.push_back(
        {fmt::format("a NUL byte in `{}`", excerpt(text.substr(0, text.find('\0')))),
         place(name_, mark), "remove it"});
  }

  /// What stands for null at a place of the text; "": nothing, as in `key:`.
  std::string null_word(const YAML::Mark& mark) const {
    if (mark.is_null() || mark.pos < 0) return {};
    const std::string_view rest =
        std::string_view(text_).substr(std::min(static_cast<size_t>(mark.pos), text_.size()));
    for (const char* word : {"~", "null", "Null", "NULL"})
      if (rest.starts_with(word)) return word;
    return {};
  }

  void convert_map(const YAML::Node& node, Value& value, int depth) {
    std::vector<Value> merged;
    std::unordered_map<std::string, Mark> seen;
    for (const auto& entry : node) {
      if (reported_size_) return;
      const Mark mark = mark_of(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        problems_.push_back({"a key must be plain text", place(name_, mark),
                             "quote a value that begins with { or ["});
        continue;
      }
      const std::string& key = entry.first.Scalar();
      check_nul(key, mark);
      if (key == "<<") {
        merged.push_back(convert(entry.second, depth + 1));
        continue;
      }
      if (const auto [first, is_new] = seen.emplace(key, mark); !is_new) {
        problems_.push_back(
            {fmt::format("`{}` is given twice", excerpt(key)), place(name_, mark),
             fmt::format("remove one; the first is on line {}", first->second.line)});
        continue;
      }
      value.keys.push_back({key, mark});
      value.items.push_back(convert(entry.second, depth + 1));
    }
    if (!merged.empty()) value = with_merged(merged, value);
  }

  /// YAML 1.1's merge key: a map, or a list of maps. Earlier maps take precedence over later ones, and the map's own keys over all
  /// of them. The order of the keys is PyYAML's: those of the last map first, the map's own at the end.
  static Value with_merged(const std::vector<Value>& sources, const Value& own) {
    Value all;
    all.kind = own.kind;
    all.mark = own.mark;
    std::unordered_map<std::string, size_t> places;
    for (auto source = sources.rbegin(); source != sources.rend(); ++source)
      merge(*source, all, places);
    merge(own, all, places);
    return all;
  }

  static void merge(const Value& source, Value& target,
                    std::unordered_map<std::string, size_t>& places) {
    if (source.kind == Value::Kind::kList) {
      for (auto item = source.items.rbegin(); item != source.items.rend(); ++item)
        merge(*item, target, places);
      return;
    }
    for (size_t i = 0; i < source.keys.size(); ++i) {
      const auto [place, is_new] = places.emplace(source.keys[i].text, target.keys.size());
      if (is_new) {
        target.keys.push_back(source.keys[i]);
        target.items.push_back(source.items[i]);
      } else {
        target.keys[place->second] = source.keys[i];
        target.items[place->second] = source.items[i];
      }
    }
  }

  void report_size(Mark mark) {
    if (reported_size_) return;
    reported_size_ = true;
    problems_.push_back({"nested too deeply, or too large", place(name_, mark),
                         "look for an alias (*name) inside the anchor (&name) that it points to"});
  }

  const std::string& text_;
  const std::string& name_;
  Problems& problems_;
  int num_nodes_ = 0;
  bool reported_size_ = false;
};

/// Keeps the beginning of each document.
struct DocumentStarts : YAML::EventHandler {
  std::vector<YAML::Mark> marks;

  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Where the first two documents of a text begin. YAML::LoadAll would never end for `{a: 1},`, in
/// which yaml-cpp finds empty documents without end.
std::vector<YAML::Mark> document_starts(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) {
  }
  return starts.marks;
}

int num_lines(const std::string& text) {
  const auto ends = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  return text.empty() || text.back() == '\n' ? ends : ends + 1;
}

/// Whether the reader found the error only at the end of the text.
bool is_past_end(const std::string& text, const YAML::Exception& error) {
  return error.mark.line >= num_lines(text);
}

std::string syntax_message(const std::string& text, const YAML::Exception& error) {
  const bool open_quote = error.msg == YAML::ErrorMsg::DOC_IN_SCALAR && is_past_end(text, error);
  return open_quote ? "a quote is not closed" : excerpt(error.msg);
}

Mark syntax_mark(const std::string& text, const YAML::Exception& error) {
  if (error.mark.is_null()) return {};
  return is_past_end(text, error) ? Mark{std::max(1, num_lines(text)), 1} : mark_of(error.mark);
}

std::string syntax_fix(const std::string& text, const YAML::Mark& mark) {
  size_t begin = 0;
  for (int line = 0; line < mark.line && begin != std::string::npos; ++line) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos || begin >= text.size())
    return "look for a quote or bracket that is opened and never closed";
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  const size_t indent = line.find_first_not_of(' ');
  if (indent != std::string::npos && line[indent] == '\t') return "indent with spaces, not tabs";
  return "check indentation, brackets and quotes on this line and the one before it";
}

bool is_json(const std::string& name) {
  return ascii_lower(name).ends_with(".json");
}

/// The line and column of the last byte that the reader of JSON took.
Mark mark_at(const std::string& text, size_t byte) {
  const std::string before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const size_t line_begin = before.rfind('\n');
  const size_t column =
      line_begin == std::string::npos ? before.size() + 1 : before.size() - line_begin;
  return {1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
          static_cast<int>(column)};
}

/// "unexpected '}'; expected string literal" of what nlohmann::json says.
std::string json_complaint(const std::string& reason) {
  const size_t begin = reason.find("unexpected ");
  const size_t value = reason.find(" - ");
  if (begin != std::string::npos) return reason.substr(begin);
  return value == std::string::npos ? "it cannot be read" : reason.substr(value + 3);
}

/// What is wrong with a text that is not YAML, of a file of JSON. nullopt: it is valid JSON.
std::optional<Problem> json_problem(const std::string& text, const std::string& name) {
  try {
    const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/true,
                                                /*ignore_comments=*/true);
    return std::nullopt;
  } catch (const nlohmann::json::out_of_range& error) {
    return Problem{"not valid JSON: " + json_reason(error), name, "write a smaller number"};
  } catch (const nlohmann::json::parse_error& error) {
    return Problem{fmt::format("not valid JSON: {}", json_complaint(json_reason(error))),
                   place(name, mark_at(text, error.byte)),
                   "check commas, brackets and quotes on this line and the one before it"};
  }
}

/// The code of \uXXXX at `at`; nullopt: there is no such escape.
std::optional<uint32_t> escaped_code(std::string_view text, size_t at) {
  constexpr size_t kLength = 6;
  if (!text.substr(at).starts_with("\\u") || at + kLength > text.size()) return std::nullopt;
  uint32_t code = 0;
  const char *begin = text.data() + at + 2, *end = text.data() + at + kLength;
  return std::from_chars(begin, end, code, 16).ptr == end ? std::optional(code) : std::nullopt;
}

/// The same JSON with pairs of surrogates (\ud83d\ude42) as one escape of YAML (\U0001f642), which has no pairs.
std::string with_yaml_escapes(const std::string& json) {
  std::string yaml;
  for (size_t at = 0; at < json.size();) {
    if (json[at] != '\\') {
      yaml += json[at++];
      continue;
    }
    constexpr size_t kEscape = 6;
    const uint32_t high = escaped_code(json, at).value_or(0),
                   low = escaped_code(json, std::min(at + kEscape, json.size())).value_or(0);
    const bool is_pair = high >= 0xd800 && high < 0xdc00 && low >= 0xdc00 && low < 0xe000;
    if (is_pair) {
      yaml += fmt::format("\\U{:08x}", 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
      at += 2 * kEscape;
    } else {
      yaml += json.substr(at, 2);
      at += 2;
    }
  }
  return yaml;
}

/// Whether a text has a pair of surrogates, and is JSON: all its strings are in double quotes then.
bool needs_yaml_escapes(const std::string& text) {
  return text.find("\\u") != std::string::npos &&
         nlohmann::json::accept(text, /*ignore_comments=*/true);
}

void require_utf8(const std::string& text, const std::string& name) {
  const std::string_view encoding = wide_encoding(text);
  if (encoding.empty()) return;
  throw ConfigProblems(
      {{fmt::format("the file is {}, not UTF-8", encoding), name, encoding_fix(encoding, name)}});
}

}  // namespace

Value parse_yaml(const std::string& given, const std::string& name, Problems& problems) {
  require_utf8(given, name);
  const std::string text = needs_yaml_escapes(given) ? with_yaml_escapes(given) : given;
  try {
    // yaml-cpp accepts a quote that is still open at the end of the text, so an end of document
    // (...) is appended, which is an error inside a quote.
    const std::string complete = text + "\n...\n";
    const std::vector<YAML::Mark> starts = document_starts(complete);
    if (starts.empty()) return {};
    if (starts.size() > 1) {
      problems.push_back({"more than one YAML document in the file",
                          place(name, mark_of(starts[1])),
                          "remove `---`, or the comma or bracket too many before this place, and "
                          "everything that does not belong to this run"});
    }
    return Converter(complete, name, problems).convert(YAML::Load(complete));
  } catch (const YAML::Exception& error) {
    if (is_json(name))
      if (auto problem = json_problem(text, name)) throw ConfigProblems({std::move(*problem)});
    throw ConfigProblems({{fmt::format("not valid YAML: {}", syntax_message(text, error)),
                           place(name, syntax_mark(text, error)), syntax_fix(text, error.mark)}});
  }
}

Value parse_yaml_value(const std::string& text) {
  Problems problems;
  Value value = parse_yaml(text, "", problems);
  throw_if_any(problems);
  return value;
}

}  // namespace sftrun::config
