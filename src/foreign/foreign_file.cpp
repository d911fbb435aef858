#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "conversion.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"

/// Reads a file of another tool and finds out which tool it is of.
namespace sftrun::foreign {
namespace {

/// Where a comment of C (`//`) begins in a line of JSON; npos: nowhere. Strings end in their line.
size_t comment_in_json(std::string_view line) {
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\')
      ++i;
    else if (line[i] == '"')
      in_string = !in_string;
    else if (!in_string && line.substr(i, 2) == "//")
      return i;
  }
  return std::string_view::npos;
}

/// Without comments of C (`//`), which are often in examples of DeepSpeed. In YAML only whole lines
/// are comments: a value may be an address, https://…
std::string without_line_comments(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  bool has_begun = false, is_json = false;
  for (std::string& line : lines) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) continue;
    if (line.compare(begin, 2, "//") == 0) {
      line.clear();
      continue;
    }
    if (!has_begun) is_json = line[begin] == '{';
    has_begun = true;
    if (is_json) line.resize(std::min(line.size(), comment_in_json(line)));
  }
  return join(lines, "\n");
}

int64_t num_signs(const ImportTable& table, const Value& document) {
  return std::count_if(table.signs.begin(), table.signs.end(),
                       [&](std::string_view sign) { return value_at(document, sign) != nullptr; });
}

bool is_ours(const Value& document) {
  return value_at(document, "tuning") != nullptr || value_at(document, "data") != nullptr;
}

/// The tool of which a file has most keys.
struct Likeness {
  const ImportTable* tool = nullptr;
  int64_t num_signs = 0;
  bool is_tie = false;  ///< another has as many
};

Likeness likeness_of(const Value& document) {
  Likeness best;
  for (const ImportTable* table : import_tables()) {
    const int64_t count = num_signs(*table, document);
    if (count > best.num_signs)
      best = {table, count};
    else if (count == best.num_signs && count > 0)
      best.is_tie = true;
  }
  return best;
}

bool is_top_level_key(const ImportTable& table, std::string_view name) {
  return std::any_of(table.rules.begin(), table.rules.end(), [&](const ImportRule& rule) {
    return rule.key == name || (rule.key.starts_with(name) && rule.key[name.size()] == '.');
  });
}

/// The tool whose file has all keys of the document, and among them a sign of it or a section. A
/// small file of a tool has no more. nullptr: none, or several
const ImportTable* owner_of_all_keys(const Value& document) {
  const bool has_section =
      std::any_of(document.items.begin(), document.items.end(), [](const Value& value) {
        return value.kind == Value::Kind::kMap && value_at(value, "_component_") == nullptr;
      });
  const ImportTable* owner = nullptr;
  for (const ImportTable* table : import_tables()) {
    const bool owns =
        table->is_strict && !document.keys.empty() &&
        (has_section || num_signs(*table, document) > 0) &&
        std::all_of(document.keys.begin(), document.keys.end(),
                    [&](const MapKey& key) { return is_top_level_key(*table, key.text); });
    if (owns && owner != nullptr) return nullptr;
    if (owns) owner = table;
  }
  return owner;
}

/// @throws ConfigError if no tool, or more than one, has most of its keys in the file
const ImportTable& recognise(const Value& document, const std::string& file) {
  const Likeness best = likeness_of(document);
  if (best.tool != nullptr && !best.is_tie) return *best.tool;
  if (const ImportTable* owner = owner_of_all_keys(document)) return *owner;
  const bool ours = is_ours(document);
  throw ConfigError(ours ? "the file is a configuration of sftrun already"
                         : "the file is not recognised as one of another tool",
                    file,
                    ours ? "use it with `sftrun train --config`"
                         : fmt::format("name its tool: --from {}", join(tool_words(), "|")));
}

/// What to do with a file of `table` that is given as one of another tool.
std::string use_of(const ImportTable& table, const std::filesystem::path& file) {
  if (table.is_strict)
    return fmt::format("name it in parallel.{} or --{}{}", table.word, table.word,
                       table.tool == Tool::kAccelerate ? "-config" : "");
  return fmt::format("translate it: sftrun config import {} --output from-{}.yaml",
                     shell_word(file.string()), table.word);
}

/// Whether a section of a run has keys. torchtune has a `model`, too.
bool has_section_of_run(const Value& document) {
  for (size_t i = 0; i < document.keys.size(); ++i) {
    const std::string& name = document.keys[i].text;
    const bool is_section = name == "data" || name == "train" || name == "tuning" ||
                            name == "output" || name == "parallel" || name == "model";
    const bool is_component = value_at(document.items[i], "_component_") != nullptr;
    if (is_section && document.items[i].kind == Value::Kind::kMap && !is_component) return true;
  }
  return false;
}

/// The file of a trainer that --from names has a key of it, or no other tool has more.
/// @throws ConfigError that names the tool whose keys the file has
void require_likely_file_of(const ImportTable& table, const Value& document,
                            const std::filesystem::path& file) {
  constexpr int64_t kFewest = 2;  // one may be a mistake
  if (table.is_strict || num_signs(table, document) > 0) return;
  const Likeness best = likeness_of(document);
  if (best.num_signs < kFewest) return;
  throw ConfigError(
      fmt::format("this looks like a file of {}, not of {}", best.tool->name, table.name),
      file.string(),
      fmt::format("write --from {}, or leave out --from {}", best.tool->word, table.word));
}

/// A file that a run names is of one tool. Its keys would all be unknown in another.
/// @throws ConfigError if the file is empty, or has more keys of another tool
void require_file_of(const ImportTable& table, const Value& document,
                     const std::filesystem::path& file) {
  if (document.kind == Value::Kind::kNull)
    throw ConfigError("the file is empty", file.string(),
                      fmt::format("name a file of {}", table.name));
  if (!table.is_strict || num_signs(table, document) > 0) return;
  for (const ImportTable* other : import_tables()) {
    if (num_signs(*other, document) == 0) continue;
    const ImportTable& found = recognise(document, file.string());
    throw ConfigError(fmt::format("this is a file of {}, not of {}", found.name, table.name),
                      file.string(), use_of(found, file));
  }
  if (is_ours(document)) recognise(document, file.string());
}

}  // namespace

void require_own_run(const Value& document, const std::filesystem::path& file) {
  constexpr int64_t kFewest = 2;  // one beside other keys may be a mistake
  if (has_section_of_run(document)) return;
  const Likeness best = likeness_of(document);
  const ImportTable* const tool =
      best.num_signs >= kFewest ? best.tool : owner_of_all_keys(document);
  if (tool == nullptr) return;
  throw ConfigError(fmt::format("this is a file of {}, not of sftrun", tool->name), file.string(),
                    use_of(*tool, file));
}

Conversion read_foreign_file(const std::filesystem::path& file, std::optional<Tool> tool) {
  Problems problems;
  Value document =
      config::parse_yaml(without_line_comments(read_text_file(file)), file.string(), problems);
  if (document.kind != Value::Kind::kMap && document.kind != Value::Kind::kNull) {
    throw ConfigError(fmt::format("the file is {}, not a map of keys", describe(document)),
                      file.string(), "name a configuration file of another tool");
  }
  const ImportTable& table = tool ? table_of(*tool) : recognise(document, file.string());
  if (tool) require_file_of(table, document, file);
  if (tool) require_likely_file_of(table, document, file);
  Conversion conversion(table, file, std::move(document));
  conversion.problems = std::move(problems);
  conversion.run();
  return conversion;
}

}  // namespace sftrun::foreign
