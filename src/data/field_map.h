#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::data {

/// A record with the keys of a known format.
struct MappedRecord {
  Json record;
  /// Names of `data.fields` that the record lacks and need not have, as "system: sys_text".
  std::vector<std::string> absent;
};

/// `data.fields`: renames columns to the keys of a known format.
class FieldMap {
 public:
  /// @param fields key of the format -> column, checked by the configuration
  FieldMap(const Json& fields, config::RecordFormat format);

  /// The record with renamed columns, and conversations as lists (tables often store them as JSON
  /// strings). Other columns are kept. A number that becomes a text stays as the file writes it;
  /// fractions elsewhere become doubles. A column of ours that another name is mapped to is not read,
  /// also where the record lacks the other.
  /// @param has_text_cells the record is a row of a CSV file   @throws DataError for a column that
  /// does not exist
  MappedRecord apply(Json record, const std::string& where, bool has_text_cells = false) const;

  /// @throws DataError if the map names one column of a pair, and `record`, already mapped, lacks
  /// the other
  void require_pairs(const Json& record, const std::string& where) const;

 private:
  void find_absent_flags(MappedRecord& mapped) const;
  void rename_turns(Json& turns) const;
  void rename_turn(Json& turn) const;

  config::TurnKeys turn_keys_;
  std::vector<std::pair<std::string, std::string>> columns_;  // ours, theirs
  std::string role_, content_;                                // keys inside a turn
  std::vector<std::pair<std::string, std::string>> flags_;    // inside a turn: ours, theirs
  std::map<std::string, std::string> roles_;
};

}  // namespace sftrun::data
