#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "known_keys.h"
#include "layers.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kPrefix = "SFTRUN_";

/// Text fields take an override unchanged, so that paths, patterns and templates need no YAML
/// quotes.
Value override_value(const std::string& text, const Field* field) {
  const std::string_view trimmed = trim(text);
  const bool quoted = trimmed.starts_with('"') || trimmed.starts_with('\'');
  const bool null = trimmed.empty() || trimmed == "null" || trimmed == "~";
  if (field != nullptr && field->type == FieldType::kText && !quoted && !null) {
    return Value::scalar(text, true);
  }
  Value value = parse_yaml_value(text);
  value.mark = {};
  return value;
}

/// Adds `key`=`text`, or a problem at `place`.
void add(std::vector<Assignment>& assignments, const std::string& key, const std::string& text,
         Layer layer, const std::string& place, const std::string& source, const Field* field,
         Problems& problems) {
  try {
    assignments.push_back({key, override_value(text, field), layer, place, place, source});
  } catch (const ConfigProblems& error) {
    problems.push_back({error.problems.front().message, place, "quote the value: key='\"value\"'"});
  }
}

/// How many words from `first` on are one override that the shell has divided, because its value has
/// spaces in brackets: `data.fields={prompt: q, completion: a}`. 1: it is whole
size_t num_words_of_override(const std::vector<std::string>& words, size_t first) {
  const size_t equals = words[first].find('=');
  if (equals == std::string::npos) return 1;
  std::string_view text = trim(std::string_view(words[first]).substr(equals + 1));
  if (!text.starts_with('{') && !text.starts_with('[')) return 1;
  int64_t depth = 0;
  for (size_t i = first; i < words.size(); ++i) {
    if (i > first) text = words[i];
    for (const char c : text) {
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
    }
    if (depth <= 0) return i - first + 1;
  }
  return 1;  // never closed
}

const Field* find_field(const Binding& fields, const std::string& key) {
  const auto found = std::find_if(fields.fields.begin(), fields.fields.end(),
                                  [&](const Field& field) { return field.key == key; });
  return found == fields.fields.end() ? nullptr : &*found;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string mapped(std::string text, int (*function)(int)) {
  for (char& c : text) c = static_cast<char>(function(static_cast<unsigned char>(c)));
  return text;
}

/// The field whose variable is `name` with single underscores: a common mistake that would have no
/// effect.
const Field* find_misspelt(const Binding& fields, const std::string& name) {
  const auto found = std::find_if(
      fields.fields.begin(), fields.fields.end(),
      [&](const Field& field) { return replaced(environment_name(field.key), "__", "_") == name; });
  return found == fields.fields.end() ? nullptr : &*found;
}

constexpr std::string_view kNcclTimeout = "NCCL_TIMEOUT";

/// Guides set it, but no version of NCCL or PyTorch reads it.
std::string answer_to_nccl_timeout(const std::string& value) {
  const auto seconds = parse_int(value);
  return fmt::format("{} in the environment has no effect; set parallel.timeout={}", kNcclTimeout,
                     seconds && *seconds > 0 ? fmt::format("{}s", *seconds) : "30m");
}

}  // namespace

std::string environment_name(const std::string& key) {
  return std::string(kPrefix) + mapped(replaced(key, ".", "__"), std::toupper);
}

std::vector<Assignment> from_command_line(const std::vector<std::string>& words,
                                          const Binding& fields, Problems& problems) {
  std::vector<Assignment> assignments;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (const size_t count = num_words_of_override(words, i); count > 1) {
      const std::string whole = join(std::span(words).subspan(i, count), " ");
      problems.push_back({fmt::format("the shell split `{}` into {} words", excerpt(whole), count),
                          "the command line", "write it in single quotes: " + shell_word(whole)});
      i += count - 1;
      continue;
    }
    const std::string place = excerpt(word) + " from the command line";
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      const std::string setting = setting_named(word);
      // Of a section its first field: a section takes no value.
      const std::string near =
          setting.empty() ? field_named(nearest_key(word, fields), fields) : setting;
      problems.push_back({fmt::format("`{}` is not of the form section.key=value", excerpt(word)),
                          "the command line",
                          near.empty() ? "write, for example, train.epochs=1"
                                       : fmt::format("write {}=VALUE", near)});
      continue;
    }
    const std::string key(trim(word.substr(0, equals)));
    add(assignments, key, word.substr(equals + 1), Layer::kCommandLine, place, "command line",
        find_field(fields, key), problems);
  }
  return assignments;
}

std::vector<Assignment> from_environment(const Binding& fields, Problems& problems,
                                         std::vector<std::string>& warnings) {
  std::vector<Assignment> assignments;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals)), value(text.substr(equals + 1));
    if (name == kNcclTimeout && !value.empty()) warnings.push_back(answer_to_nccl_timeout(value));
    if (!name.starts_with(kPrefix)) continue;
    if (name.find("__") == std::string::npos) {
      if (const Field* meant = find_misspelt(fields, name)) {
        warnings.push_back(fmt::format("{} in the environment has no effect; did you mean {}?",
                                       name, environment_name(meant->key)));
      } else if (const std::string section = mapped(name.substr(kPrefix.size()), std::tolower);
                 fields.has_section(section)) {
        warnings.push_back(fmt::format(
            "{} in the environment has no effect, because `{}` is a section; name one of its "
            "keys, as in {}",
            name, section, environment_name(field_named(section, fields))));
      }
      continue;
    }
    if (value.empty()) continue;  // `export NAME=` and make's unset variables
    const std::string key = mapped(replaced(name.substr(kPrefix.size()), "__", "."), std::tolower);
    add(assignments, key, value, Layer::kEnvironment,
        fmt::format("{}={} from the environment", excerpt(name), excerpt(value)), name,
        find_field(fields, key), problems);
  }
  std::sort(assignments.begin(), assignments.end(),
            [](const Assignment& a, const Assignment& b) { return a.key < b.key; });
  return assignments;
}

}  // namespace sftrun::config
