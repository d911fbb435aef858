#pragma once

#include <span>
#include <string_view>

#include "sftrun/config/named_files.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/value.h"
#include "sftrun/foreign/import.h"

/// Tables of other tools' keys: one rule for each key.
namespace sftrun::foreign {

using config::Assignment, config::AssignmentLayers, config::Given, config::MapKey, config::Mark;
using config::MachineSettings, config::NamedFiles, config::Problem, config::Problems, config::Value;
using config::parse_bool, config::parse_double, config::parse_int, config::value_from_json;

class Reading;
struct SourceKey;

enum class Effect {
  kField,      ///< the value of a field here
  kWords,      ///< the value of a field, in other words
  kNoMeaning,  ///< changes no result, or is always so here
  kLost,       ///< would matter; noted if its value is not `harmless`
  kRefused,    ///< would change the run; an error if its value is not `harmless`
  kSpecial     ///< a function
};

struct WordPair {
  std::string_view theirs, ours;  ///< of a prefix: the section, the beginning of its keys
};

struct ImportRule {
  std::string_view key;  ///< "zero_optimization.stage"; "aio.*" stands for all keys that begin so
  Effect effect;
  std::string_view field = {};           ///< the field that is set; empty: none, or several
  std::string_view note = {};            ///< why there is no field; of kRefused: what to do
  std::span<const WordPair> words = {};  ///< compared without case
  std::string_view harmless = {};        ///< besides null, false, "no", "none", 0 and empty values
  void (*special)(Reading&, const SourceKey&) = nullptr;
};

// The rules of a table, as its rows are written.
constexpr ImportRule field(std::string_view key, std::string_view ours) {
  return {.key = key, .effect = Effect::kField, .field = ours};
}
constexpr ImportRule words(std::string_view key, std::string_view ours,
                           std::span<const WordPair> pairs) {
  return {.key = key, .effect = Effect::kWords, .field = ours, .words = pairs};
}
constexpr ImportRule nothing(std::string_view key, std::string_view why) {
  return {.key = key, .effect = Effect::kNoMeaning, .note = why};
}
constexpr ImportRule lost(std::string_view key, std::string_view why,
                          std::string_view harmless = "") {
  return {.key = key, .effect = Effect::kLost, .note = why, .harmless = harmless};
}
constexpr ImportRule refused(std::string_view key, std::string_view fix,
                             std::string_view harmless = "") {
  return {.key = key, .effect = Effect::kRefused, .note = fix, .harmless = harmless};
}
constexpr ImportRule special(std::string_view key, void (*function)(Reading&, const SourceKey&)) {
  return {.key = key, .effect = Effect::kSpecial, .special = function};
}

/// A default of the tool that differs from the default here.
struct ToolDefault {
  std::string_view field, value;
  std::string_view unless = {};  ///< not if this field is set
};

struct ImportTable {
  Tool tool;
  std::string_view name;  ///< "DeepSpeed"
  std::string_view word;  ///< "deepspeed"
  std::span<const ImportRule> rules;
  /// Top-level keys that other tools do not have. A file is of the tool of which it has most.
  std::span<const std::string_view> signs;
  /// Keys that name the objective, the one that a file should have first. They are an error in the
  /// file of another tool, which would train on its own objective.
  std::span<const std::string_view> objective_keys = {};
  /// What depends on several keys. After all rules.
  void (*finish)(Reading&) = nullptr;
  std::span<const ToolDefault> defaults = {};
  /// A run names files of this tool, so it takes only keys of the table, and a value that a field
  /// refuses is an error. Otherwise other keys are looked up in the table of foreign keys
  /// (foreign_keys.h), and what cannot be carried over is noted.
  bool is_strict = false;
  /// `${key}` stands for the value of a key.
  bool has_interpolation = false;
  /// The line that trains an adapter, of what the fix "set tuning.mode to lora" means in the file.
  std::string_view adapter_line = {};
  /// Sections whose keys may be written without the beginning that they share.
  std::span<const WordPair> prefixes = {};
};

const ImportTable& accelerate_table();
const ImportTable& deepspeed_table();
const ImportTable& axolotl_table();
const ImportTable& llama_factory_table();
const ImportTable& trl_table();
const ImportTable& torchtune_table();
std::span<const ImportTable* const> import_tables();
const ImportTable& table_of(Tool tool);

}  // namespace sftrun::foreign
