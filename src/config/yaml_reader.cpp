#include "yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

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
  Converter(const std::string& name, Problems& problems) : name_(name), problems_(problems) {}

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
  void convert_map(const YAML::Node& node, Value& value, int depth) {
    std::vector<Value> merged;
    std::map<std::string, Mark> seen;
    for (const auto& entry : node) {
      if (reported_size_) return;
      const Mark mark = mark_of(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        problems_.push_back({"a key must be plain text", place(name_, mark),
                             "quote a value that begins with { or ["});
        continue;
      }
      const std::string& key = entry.first.Scalar();
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
    for (const Value& source : merged) merge(source, value);
  }

  /// YAML 1.1's merge key: a map, or a list of maps. Earlier maps take precedence over later ones,
  /// and the map's own keys over all of them.
  static void merge(const Value& source, Value& target) {
    if (source.kind == Value::Kind::kList) {
      for (const Value& item : source.items) merge(item, target);
    }
    for (size_t i = 0; i < source.keys.size(); ++i) {
      if (find(target, source.keys[i].text)) continue;
      target.keys.push_back(source.keys[i]);
      target.items.push_back(source.items[i]);
    }
  }

  static const MapKey* find(const Value& map, const std::string& key) {
    const auto found = std::find_if(map.keys.begin(), map.keys.end(),
                                    [&](const MapKey& entry) { return entry.text == key; });
    return found == map.keys.end() ? nullptr : &*found;
  }

  void report_size(Mark mark) {
    if (reported_size_) return;
    reported_size_ = true;
    problems_.push_back({"nested too deeply, or too large", place(name_, mark),
                         "look for an alias (*name) inside the anchor (&name) that it points to"});
  }

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
  return open_quote ? "a quote is not closed" : error.msg;
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
std::string json_complaint(const std::string& what) {
  const size_t begin = what.find("unexpected ");
  const size_t value = what.find(" - ");
  if (begin != std::string::npos) return what.substr(begin);
  return value == std::string::npos ? "it cannot be read" : what.substr(value + 3);
}

/// What is wrong with a text that is not YAML, of a file of JSON. nullopt: it is valid JSON.
std::optional<Problem> json_problem(const std::string& text, const std::string& name) {
  try {
    const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/true,
                                                /*ignore_comments=*/true);
    return std::nullopt;
  } catch (const nlohmann::json::parse_error& error) {
    return Problem{fmt::format("not valid JSON: {}", json_complaint(error.what())),
                   place(name, mark_at(text, error.byte)),
                   "check commas, brackets and quotes on this line and the one before it"};
  }
}

}  // namespace

Value parse_yaml(const std::string& text, const std::string& name, Problems& problems) {
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
    return Converter(name, problems).convert(YAML::Load(complete));
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
