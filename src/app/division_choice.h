#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli.h"
#include "run_check.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/plan/model_use.h"

/// How a command divides a model that one device does not hold, if no flag says it: before the
/// engine is loaded.
namespace sftrun::app {

/// A model, as a command uses it.
struct UsedModel {
  std::filesystem::path model;
  std::vector<std::filesystem::path> adapters;
  std::string dtype = "auto";  ///< as --dtype has it
  bool as_stored = false;
  plan::SequencesMemory sequences;  ///< `element_bytes` is set later
  bool has_one_copy = false;        ///< as plan::ModelUse::has_one_copy
  bool is_one_process = false;      ///< it reads or writes a stream
  const char* command = "the command";
  bool takes_shards = true;  ///< `--strategy fsdp` is for it
};

/// Without the empty ones.
std::vector<std::filesystem::path> adapter_paths(const std::vector<std::string>& adapters);

/// Sequences of a command whose prompts are not known yet.
inline constexpr int64_t kUsualPrompt = 1024, kUsualConversation = 8192;

/// Chooses as `plan::choose_division`, and sets the flags as if the user had given them. Logs what it
/// chose and why, if that divides the model. Leaves flags that name a division as they are, and warns
/// of those that divide nothing on a CPU.
/// @param launch with `device`
/// @throws ConfigError for flags that contradict each other, or do not fit the model or the processes;
/// OutOfMemoryError if the weights fit nowhere
void choose_division(const UsedModel& used, LaunchFlags& launch, DivisionFlags& division);

/// The same for a machine, without reading it.
void choose_division(const UsedModel& used, const launch::Machine& machine, uint64_t host_bytes,
                     LaunchFlags& launch, DivisionFlags& division);

}  // namespace sftrun::app
