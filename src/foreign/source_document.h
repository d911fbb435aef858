#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "rule.h"

namespace sftrun::foreign {

/// A key of the file, in dots.
struct SourceKey {
  std::string name;
  const Value& value;
  std::string place, value_place;
  std::string source;  ///< "ds.json:4"
};

/// The keys and values of a file of another tool, with their places in it.
class SourceDocument {
 public:
  /// Completes keys, and replaces `${key}`, as the table of the tool says.
  SourceDocument(const ImportTable& table, std::filesystem::path file, Value document);

  /// nullopt: the file has no such key, or its value is empty.
  std::optional<SourceKey> find(std::string_view name) const;
  /// Also a key without a value.
  std::optional<SourceKey> find_named(std::string_view name) const;
  std::string text_of(std::string_view name) const;  ///< "" if there is no such key
  SourceKey key_of(std::string name, const MapKey& key, const Value& value) const;
  const std::filesystem::path& file() const { return file_; }
  /// As given if it exists, else beside this file.
  std::filesystem::path path_beside(const std::string& name) const;
  const Value& root() const { return root_; }

 private:
  std::filesystem::path file_;
  Value root_;
};

/// Whether the value means that a feature is off: null, false, "no", "none", 0, an empty list or map.
bool is_off(const Value& value);
bool is_auto_word(const Value& value);
/// `value` with each `${key}` replaced by the text of that key of `document`.
Value interpolated(const Value& value, const Value& document);
/// A value inside nested maps; nullptr: there is none. @param name in dots
const Value* value_at(const Value& document, std::string_view name);

}  // namespace sftrun::foreign
