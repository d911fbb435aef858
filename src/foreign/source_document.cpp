#include "source_document.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

/// Completes the keys of a section that lack the beginning which they share.
void complete_keys(Value& document, const std::string& section, const std::string& beginning) {
  for (size_t i = 0; i < document.keys.size(); ++i) {
    if (document.keys[i].text != section) continue;
    for (MapKey& key : document.items[i].keys)
      if (!key.text.starts_with(beginning)) key.text.insert(0, beginning);
  }
}

}  // namespace

bool is_auto_word(const Value& value) {
  return value.kind == Value::Kind::kScalar && ascii_lower(value.text) == "auto";
}

bool is_off(const Value& value) {
  if (value.kind == Value::Kind::kNull) return true;
  if (value.kind != Value::Kind::kScalar) return value.items.empty();
  return value.text.empty() || value.text == "0" || ascii_lower(value.text) == "none" ||
         ascii_lower(value.text) == "null" || parse_bool(value.text) == false;
}

const Value* value_at(const Value& document, std::string_view name) {
  const Value* value = &document;
  for (const std::string& part : split(name, '.')) {
    const auto found = std::find_if(value->keys.begin(), value->keys.end(),
                                    [&](const MapKey& key) { return key.text == part; });
    if (found == value->keys.end()) return nullptr;
    value = &value->items[static_cast<size_t>(found - value->keys.begin())];
  }
  return value;
}

Value interpolated(const Value& value, const Value& document) {
  constexpr size_t kLongest = 4096;  // paths; values that name each other cannot grow without end
  Value result = value;
  for (Value& item : result.items) item = interpolated(item, document);
  size_t begin = result.text.find("${");
  while (begin != std::string::npos && result.text.size() < kLongest) {
    const size_t end = result.text.find('}', begin);
    if (end == std::string::npos) break;
    const Value* named = value_at(document, result.text.substr(begin + 2, end - begin - 2));
    const bool is_text = named != nullptr && named->kind == Value::Kind::kScalar;
    if (is_text) result.text.replace(begin, end - begin + 1, named->text);
    begin = result.text.find("${", is_text ? begin + named->text.size() : end);
  }
  return result;
}

SourceDocument::SourceDocument(const ImportTable& table, std::filesystem::path file, Value document)
    : file_(std::move(file)), root_(std::move(document)) {
  for (const auto& [section, beginning] : table.prefixes) complete_keys(root_, section, beginning);
  for (int pass = 0; pass < 2 && table.has_interpolation; ++pass)  // a value may name another
    root_ = interpolated(root_, root_);
}

SourceKey SourceDocument::key_of(std::string name, const MapKey& key, const Value& value) const {
  const auto place = [&](Mark mark) {
    return fmt::format("{}:{}:{}", file_.string(), mark.line, mark.column);
  };
  return {.name = std::move(name),
          .value = value,
          .place = place(key.mark),
          .value_place = place(value.mark.line > 0 ? value.mark : key.mark),
          .source = fmt::format("{}:{}", file_.string(), key.mark.line)};
}

std::optional<SourceKey> SourceDocument::find(std::string_view name) const {
  auto key = find_named(name);
  if (key && key->value.kind == Value::Kind::kNull) key.reset();
  return key;
}

std::optional<SourceKey> SourceDocument::find_named(std::string_view name) const {
  const size_t dot = name.rfind('.');
  const Value* map = dot == std::string_view::npos ? &root_ : value_at(root_, name.substr(0, dot));
  if (map == nullptr) return std::nullopt;
  const std::string_view leaf = name.substr(dot == std::string_view::npos ? 0 : dot + 1);
  for (size_t i = 0; i < map->keys.size(); ++i) {
    if (map->keys[i].text == leaf) return key_of(std::string(name), map->keys[i], map->items[i]);
  }
  return std::nullopt;
}

std::string SourceDocument::text_of(std::string_view name) const {
  const auto key = find(name);
  return key ? key->value.text : "";
}

std::filesystem::path SourceDocument::path_beside(const std::string& name) const {
  std::filesystem::path path = name;
  if (path.is_absolute() || leads_to_file(path)) return path;
  std::filesystem::path beside = (file_.parent_path() / path).lexically_normal();
  return leads_to_file(beside) ? beside : path;
}

}  // namespace sftrun::foreign
