#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/config/value.h"

/// Tables that the program holds as YAML: a list of rows, each a map.
namespace sftrun::config {

using TextPairs = std::vector<std::pair<std::string, std::string>>;

/// Reads the entries of one row. An entry that the row does not have is empty.
/// @throws ConfigError at the line of the table if an entry has another form
class TableRow {
 public:
  /// @param table name of the file, for errors   @param row must outlive the result
  TableRow(std::string_view table, const Value& row);

  bool has(std::string_view entry) const { return find(entry) != nullptr; }
  std::string text(std::string_view entry) const;
  std::vector<std::string> list(std::string_view entry) const;
  TextPairs pairs(std::string_view entry) const;  ///< a map of texts, in its order
  std::vector<TableRow> rows(std::string_view entry) const;

  /// @throws ConfigError if the row has another entry than these
  void require_only(std::initializer_list<std::string_view> entries) const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const Value* find(std::string_view entry) const;
  std::string scalar(std::string_view entry, const Value& value) const;

  std::string_view table_;
  const Value& row_;
};

/// A table as it is in the program.   @throws ConfigProblems if it is not YAML
Value parse_table(std::string_view text, std::string_view table);
/// The rows of a table that is a list. `document` must outlive them.
std::vector<TableRow> rows_of(std::string_view table, const Value& document);

}  // namespace sftrun::config
