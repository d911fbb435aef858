#pragma once

#include <filesystem>
#include <map>
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

namespace sftrun::foreign {

/// A key of the file, in dots.
struct SourceKey {
  std::string name;
  const Value& value;
  std::string place, value_place;
  std::string source;  ///< "ds.json:4"
};

/// The conversion of a file of another tool to settings of a run, by the table of the tool.
class Conversion {
 public:
  Conversion(const ImportTable& table, std::filesystem::path file, Value document);

  /// Applies the table.
  void run();
  /// Takes back what has no use with the file's own tuning.mode, and gives what several keys say
  /// together one form.
  void settle();
  /// Takes back which of `parallel.offload.base` and `params` has no use with this tuning.mode ("": it
  /// is not known), and notes where the strategy keeps trained weights on the device.
  void settle_weights_on_host(std::string_view mode);

  // ---- The file
  /// nullopt: the file has no such key, or its value is empty.
  std::optional<SourceKey> find(std::string_view name) const;
  /// Also a key without a value.
  std::optional<SourceKey> find_named(std::string_view name) const;
  std::string text_of(std::string_view name) const;  ///< "" if there is no such key
  /// A whole number of at least `min`; other values are reported.
  std::optional<int64_t> count_of(std::string_view name, int64_t min);
  const std::filesystem::path& file() const { return file_; }
  Tool tool() const { return table_.tool; }
  /// As given if it exists, else beside this file.
  std::filesystem::path path_beside(const std::string& name) const;

  // ---- What it becomes
  bool has(std::string_view field) const;
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
  Given* find_given(std::string_view field);  ///< nullptr: not given
  void settle_quantised_base();
  void settle_checkpoints();
  void settle_validation();
  void settle_deepspeed();
  std::string given_text(std::string_view field) const;  ///< "": not given
  void walk(const Value& map, const std::string& section);
  void apply_rule(const ImportRule& rule, const SourceKey& key);
  void apply_words(const ImportRule& rule, const SourceKey& key);
  /// A key without a rule.
  void apply_unknown(const SourceKey& key);
  bool has_rule_inside(std::string_view name) const;
  const ImportRule* find_rule(std::string_view name) const;
  SourceKey key_of(std::string name, const MapKey& key, const Value& value) const;
  /// Reports a value that the field does not take, and values that contradict each other.
  bool accept(const SourceKey& key, std::string_view field, const Value& value);
  std::vector<std::string> key_names() const;
  /// Completes the notes of `note_unused`, when all keys are read.
  void name_used_values();
  /// The value of a field after the import, as YAML; "": none.
  std::string used_value(const std::string& field);

  const ImportTable& table_;
  std::filesystem::path file_;
  Value document_;
  std::unordered_set<std::string> reported_;  ///< places of the first `num_reported_` problems
  size_t num_reported_ = 0;
  std::vector<std::pair<size_t, std::string>> unused_;  ///< indices in not_carried, and fields
};

/// Whether the value means that a feature is off: null, false, "no", "none", 0, an empty list or map.
bool is_off(const Value& value);
/// `value` with each `${key}` replaced by the text of that key of `document`.
Value interpolated(const Value& value, const Value& document);
/// A value inside nested maps; nullptr: there is none. @param name in dots
const Value* value_at(const Value& document, std::string_view name);

/// @throws ConfigError if the file that is given as a run's YAML is of another tool
void require_own_run(const Value& document, const std::filesystem::path& file);
/// Reads the file and applies the table of `tool` (nullopt: recognised). What is wrong in it is in
/// `problems` of the result.
/// @throws ConfigError if the file is not YAML or JSON, or no tool is recognised; DataError if it
/// cannot be read
Conversion read_foreign_file(const std::filesystem::path& file, std::optional<Tool> tool);

}  // namespace sftrun::foreign
