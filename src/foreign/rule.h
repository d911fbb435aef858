#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/named_files.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/table_row.h"
#include "sftrun/config/value.h"
#include "sftrun/foreign/import.h"

/// Tables of other tools' keys: one rule for each key. They are data that the program holds
/// (tools/*.yaml); functions convert the values that need more.
namespace sftrun::foreign {

using config::Assignment, config::AssignmentLayers, config::Given, config::MapKey, config::Mark;
using config::MachineSettings, config::NamedFiles, config::Problem, config::Problems, config::Value;
using config::parse_bool, config::parse_double, config::parse_int, config::value_from_json;

class Conversion;
struct SourceKey;

/// What a file's value for a key does. In the tables (tools/*.yaml) each row has one of these entries
/// for its `keys`:
///   field: train.batch_size     kField; with `words: {theirs: ours}`: kWords, and with
///                               `optimizers: deepspeed` by the names of config/optimizers.h
///   no_meaning: WHY             kNoMeaning
///   lost: WHY                   kLost; `harmless: VALUE` is not noted
///   refused: FIX                kRefused; `harmless: VALUE` is no error
///   convert: NAME               kConverted, by a function of the tool's file or of converters.cpp
///   elsewhere: true             kElsewhere
/// A key ends with `*` if it stands for all keys that begin so. A key's own row comes before such
/// rows, and among these the first that fits.
enum class Effect {
  kField,      ///< the value of a field here
  kWords,      ///< the value of a field, in other words; compared without case
  kNoMeaning,  ///< changes no result, or is always so here
  kLost,       ///< would matter; noted if its value is not `harmless`
  kRefused,    ///< would change the run; an error if its value is not `harmless`
  kConverted,  ///< a function
  kElsewhere   ///< the function of another key, or `finish`, reads it
};

using Convert = void (*)(Conversion&, const SourceKey&);

struct ImportRule {
  std::string key;  ///< "zero_optimization.stage"; "aio.*" stands for all keys that begin so
  Effect effect;
  std::string field;        ///< the field that is set; empty: none, or several
  std::string note;         ///< why there is no field; of kRefused: what to do
  config::TextPairs words;  ///< theirs, and ours ("": the field is not set)
  std::string harmless;     ///< besides null, false, "no", "none", 0 and empty values
  Convert convert = nullptr;
};

/// A pair of words in code.
struct WordPair {
  std::string_view theirs, ours;
};

/// A function that rows name.
struct Converter {
  std::string_view name;
  Convert function;
};

/// A default of the tool that differs from the default here.
struct ToolDefault {
  std::string field, value;
  std::string unless;  ///< not if this field is set
};

/// What a tool's table cannot hold.
struct ToolCode {
  Tool tool;
  std::string_view name;   ///< "DeepSpeed"
  std::string_view word;   ///< "deepspeed"
  std::string_view table;  ///< the text of its table
  std::span<const Converter> converters;
  /// What depends on several keys. After all rules.
  void (*finish)(Conversion&) = nullptr;
  /// A run names files of this tool, so it takes only keys of the table, and a value that a field
  /// refuses is an error. Otherwise other keys are looked up in the table of foreign keys
  /// (foreign_keys.h), and what cannot be carried over is noted.
  bool is_strict = false;
  /// `${key}` stands for the value of a key.
  bool has_interpolation = false;
};

struct ImportTable : ToolCode {
  std::vector<ImportRule> rules;
  /// Top-level keys that other tools do not have. A file is of the tool of which it has most.
  std::vector<std::string> signs;
  /// Keys that name the objective, the one that a file should have first. They are an error in the
  /// file of another tool, which would train on its own objective.
  std::vector<std::string> objective_keys;
  std::vector<ToolDefault> defaults;
  /// The line that trains an adapter, of what the fix "set tuning.mode to lora" means in the file.
  std::string adapter_line;
  /// Sections whose keys may be written without the beginning that they share.
  config::TextPairs prefixes;
};

const ToolCode& accelerate();
const ToolCode& deepspeed();
const ToolCode& axolotl();
const ToolCode& llama_factory();
const ToolCode& trl();
const ToolCode& torchtune();
/// In the order of `Tool`.
std::span<const ToolCode* const> tools();
/// Functions that rows of every tool may name.
std::span<const Converter> shared_converters();

/// @throws ConfigError if a row does not say what a key does, or names no function
ImportTable read_table(const ToolCode& code);
/// The table, which is read when it is first needed.
const ImportTable& table_of(Tool tool);
/// All tables.
std::span<const ImportTable* const> import_tables();

}  // namespace sftrun::foreign
