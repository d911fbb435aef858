#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"

/// Configurations of other tools, as configurations of sftrun (`sftrun config import`). The tables
/// of their keys are in src/foreign/tools/, one file for each tool.
namespace sftrun::foreign {

enum class Tool { kAccelerate, kDeepSpeed, kAxolotl, kLlamaFactory, kTrl, kTorchtune };

std::string_view tool_name(Tool tool);  ///< "LLaMA-Factory"
std::string_view tool_word(Tool tool);  ///< "llama-factory", as `--from` takes it
std::vector<std::string> tool_words();
std::optional<Tool> tool_of(std::string_view word);

/// A value that the file gives to a field.
struct ImportedSetting {
  std::string key;  ///< "parallel.strategy"
  nlohmann::ordered_json value;
  std::string from;   ///< the file's key: "zero_optimization.stage"; empty: a default of the tool
  std::string place;  ///< "ds.json:4:5"
};

/// A key of the file that sets no field, and why.
struct ImportNote {
  std::string key, why, place;
};

struct Import {
  Tool tool{};
  std::filesystem::path file;
  std::vector<ImportedSetting> settings;
  config::MachineSettings launch;       ///< number of processes and machines
  std::vector<ImportNote> from_run;     ///< keys that are `auto`: the run's value is used
  std::vector<ImportNote> no_meaning;   ///< keys without a use here; they change no result
  std::vector<ImportNote> not_carried;  ///< keys that would matter, but have no equivalent
  std::vector<std::string> missing;     ///< fields that a run still needs: "model.name"
};

/// Reads a configuration file of another tool.
/// @param tool nullopt: recognised from the file's keys
/// @throws ConfigError if the tool is not recognised, if values are wrong or contradict each other,
/// or if the file asks for something that would change the run and does not exist here; DataError
/// if the file cannot be read.
Import import_config(const std::filesystem::path& file, std::optional<Tool> tool);

/// The import as a run's YAML: fields with their origin, launch flags and notes in comments.
std::string to_yaml(const Import& import);
nlohmann::ordered_json to_json(const Import& import);
/// "--nproc-per-node 2 --nnodes 2": flags of `sftrun train` for the launch settings.
std::string launch_flags(const config::MachineSettings& launch);

}  // namespace sftrun::foreign
