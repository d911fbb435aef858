#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/limits.h"
#include "sftrun/config/run_config.h"
#include "sftrun/config/value.h"

/// The fields of a RunConfig without their C++ types, for code that handles all fields alike.
namespace sftrun::config {

enum class FieldType {
  kBool,
  kInt,
  kAutoInt,
  kNumber,
  kText,
  kTextList,
  kTargets,  ///< a list of names, or a regular expression
  kChoice,
  kObject,
  kDeviceMap,
  kSources,
  kParts,
  kPartRates,
  kProjectors,
  kLosses,
  kRewards
};

/// Why a value is refused: the end of a sentence that begins with the field's name.
struct Complaint {
  std::string what, fix;
  bool show_takes = true;  ///< append what the field accepts
};

struct Field {
  std::string key;  ///< "tuning.lora.r"
  FieldType type;
  Limits limits;
  OnResume on_resume;
  std::vector<std::string> words, aliases, unsupported_words;  ///< of a choice
  std::string help, example;
  std::function<std::optional<Complaint>(const Value&)>
      assign;  ///< changes the member only if there is no complaint
  std::function<nlohmann::ordered_json()> get;
  std::function<void()> reset;  ///< to the default

  bool is_path() const { return limits.is_path || type == FieldType::kSources; }
  std::string section() const { return key.substr(0, key.rfind('.')); }
  std::string leaf() const { return key.substr(key.rfind('.') + 1); }
  /// "auto or a whole number of at least 1", "lora, full or partial", …
  std::string takes() const;
};

struct Section {
  std::string name, help;
};

struct Binding {
  std::vector<Section> sections;
  std::vector<Field> fields;

  Field* find(const std::string& key);
  bool has_section(const std::string& name) const;
};

/// Fields that read and write `config`, which must outlive the result.
Binding bind(RunConfig& config);

}  // namespace sftrun::config
