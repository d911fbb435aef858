#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rule.h"
#include "sftrun/config/assignment.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/value.h"
#include "source_document.h"

namespace sftrun::foreign {

/// The conversion of a file of another tool to settings of a run, by the table of the tool. Functions
/// of the table read the file and set fields, note keys that set none, or refuse values.
class Conversion {
 public:
  Conversion(const ImportTable& table, std::filesystem::path file, Value document)
      : table_(table), source_(table, std::move(file), std::move(document)) {}

  /// Applies the table.
  void run();

  // ---- The file (source_document.h)
  const SourceDocument& source() const { return source_; }
  std::optional<SourceKey> find(std::string_view name) const { return source_.find(name); }
  std::string text_of(std::string_view name) const { return source_.text_of(name); }
  /// A whole number of at least `min`; other values are reported.
  std::optional<int64_t> count_of(std::string_view name, int64_t min);
  const std::filesystem::path& file() const { return source_.file(); }
  Tool tool() const { return table_.tool; }

  // ---- What it becomes
  bool has(std::string_view field) const { return find_given(field) != nullptr; }
  const Given* find_given(std::string_view field) const;  ///< nullptr: not given
  Given* find_given(std::string_view field);
  std::string given_text(std::string_view field) const;  ///< "": not given
  /// @param field "train.batch_size"
  void set(const SourceKey& key, std::string_view field, Value value, bool is_firm = true);
  void set(const SourceKey& key, std::string_view field, std::string_view text,
           bool is_firm = true);
  /// A default of the tool.
  void set_default(std::string_view field, std::string_view text);
  void set_default(std::string_view field, Value value);
  /// `key` is auto: the run's value is used.
  void note_auto(const SourceKey& key);
  void note_no_meaning(const SourceKey& key, std::string why);
  void note_lost(const SourceKey& key, std::string why);
  /// A value that `field` does not take. The note goes on with the value that is used instead.
  void note_unused(const SourceKey& key, std::string why, std::string_view field);
  /// The values of `field` have no meaning in the file, and are not given.
  void take_back(std::string_view field, const std::string& why);
  /// An error at `key`.
  void refuse(const SourceKey& key, std::string message, std::string fix);
  /// Two keys that cannot both be.
  void refuse(const SourceKey& key, const SourceKey& other, std::string message, std::string fix);
  /// Takes over what another file says that this one names.
  void include(Conversion&& other);

  std::vector<Given> given;
  MachineSettings launch;
  std::vector<ImportNote> from_run, no_meaning, not_carried;
  std::vector<ImportNote> weights_on_host;  ///< keys that keep all parameters on the host
  std::set<std::string> lost_splits;        ///< paths of data of which all records are used
  Problems problems;

 private:
  bool is_reported(const std::string& place);
  /// Reports a value that the field does not take, and values that contradict each other.
  bool accept(const SourceKey& key, std::string_view field, const Value& value);
  /// Completes the notes of `note_unused`, when all keys are read.
  void name_used_values();
  /// The value of a field after the import, as YAML; "": none.
  std::string used_value(const std::string& field) const;

  const ImportTable& table_;
  SourceDocument source_;
  std::unordered_set<std::string> reported_;  ///< places of the first `num_reported_` problems
  size_t num_reported_ = 0;
  std::vector<std::pair<size_t, std::string>> unused_;  ///< indices in not_carried, and fields
};

/// @throws ConfigError if the file that is given as a run's YAML is of another tool
void require_own_run(const Value& document, const std::filesystem::path& file);
/// Reads the file and applies the table of `tool` (nullopt: recognised). What is wrong in it is in
/// `problems` of the result.
/// @throws ConfigError if the file is not YAML or JSON, or no tool is recognised; DataError if it
/// cannot be read
Conversion read_foreign_file(const std::filesystem::path& file, std::optional<Tool> tool);

}  // namespace sftrun::foreign
