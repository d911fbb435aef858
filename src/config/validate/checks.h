#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "layers.h"
#include "objective_refusals.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/run_config.h"

/// Relations between settings that must hold, a file for each section of the YAML. They change
/// nothing.
namespace sftrun::config::relations {

using Run = const RunConfig&;

/// A text of a rule: a constant, or written from the run's settings.
class Text {
 public:
  using Write = std::string (*)(Run run);
  constexpr Text(const char* text) : text_(text) {}
  template <std::convertible_to<Write> Function>
  constexpr Text(Function write) : write_(write) {}
  std::string of(Run run) const { return write_ == nullptr ? text_ : write_(run); }

 private:
  const char* text_ = "";
  Write write_ = nullptr;
};

/// One relation between settings.
struct Rule {
  bool (*is_broken)(Run run);
  Text message;
  std::array<const char*, 2> keys;  ///< whose places an error names; nullptr: fewer
  Text fix;
};

/// The configuration that is checked, and where problems go.
class Checks {
 public:
  Checks(const LoadedConfig& loaded, ConfigUse use, Problems& problems,
         std::vector<std::string>& warnings)
      : loaded_(loaded), use_(use), problems_(problems), warnings_(warnings) {}

  Run run() const { return loaded_.config; }
  bool needs_data() const { return use_ != ConfigUse::kNoRun; }
  bool trains() const { return use_ != ConfigUse::kEvaluation; }
  /// Whether a file, the environment or the command line sets the key.
  bool is_set(const std::string& key) const { return loaded_.places.contains(key); }

  /// Reports the rules that are broken.
  void require(std::span<const Rule> rules);
  /// @param keys whose places are named, as far as they are set
  void error(const std::string& message, std::initializer_list<const char*> keys,
             const std::string& fix);
  /// What the objective refuses.
  void error(const std::vector<ObjectiveRefusal>& refusals);
  void warn(const std::string& message, const std::string& key);

 private:
  const LoadedConfig& loaded_;
  ConfigUse use_;
  Problems& problems_;
  std::vector<std::string>& warnings_;
};

void check_names(Checks& checks);
void check_dtype(Checks& checks);
void check_tuning(Checks& checks);
void check_data(Checks& checks);
void check_objective(Checks& checks);
void check_optimizer(Checks& checks);
void check_evaluation(Checks& checks);
void check_answers_and_best(Checks& checks);
void check_output(Checks& checks);
void check_callbacks(Checks& checks);
void check_schedule(Checks& checks);
void check_parallel(Checks& checks);

/// A duration in a text.   @param fix what to write
void check_time(Checks& checks, const char* key, const std::string& text, bool may_be_zero,
                const std::string& fix);
/// A value of a map, as an error shows it.
std::string shown(const nlohmann::ordered_json& value);

}  // namespace sftrun::config::relations
