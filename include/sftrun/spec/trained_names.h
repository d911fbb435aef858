#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

/// What configurations ask to train, by the names of modules and parameters.
namespace sftrun::spec {

/// Where low-rank updates go; names as peft matches them.
struct LoraTargets {
  std::vector<std::string> modules;  ///< endings of names, or "all-linear"
  bool is_pattern = false;  ///< modules holds one regular expression over whole names instead
  std::vector<std::string> parameters;  ///< of experts and routers, endings of names
  double dropout = 0;
};

/// @throws ConfigError for a name that the model has nothing of, naming what there is
void require_targets_exist(const LoraTargets& targets, const ArchSpec& arch);

/// A router's update is asked for by its parameter's name alone: `gate` would mean another thing in
/// other layers.
bool is_target(const LoraTargets& targets, const std::string& module, LinearSlot slot,
               const ArchSpec& arch);
/// Of experts' tensors: the whole name or its ending.
bool is_target(const LoraTargets& targets, const std::string& parameter);

/// How many values the updates of rank `r` hold.
int64_t num_lora_values(const LoraTargets& targets, int64_t r, const ArchSpec& arch);

/// Coefficient of the routers' load-balancing loss: what the run asks for, else what the model's
/// config.json does; null: nobody does.
/// @throws ConfigError naming the run's key, for a model that has no such loss
std::optional<double> aux_loss_coef(std::optional<double> asked, const MixtureSpec& mixture);

/// Names of the modules and experts' tensors that get an update.
std::set<std::string> adapted_names(const LoraTargets& targets, const ArchSpec& arch);

/// The parameters that regular expressions name, searched as in Python's re.search.
class TrainableNames {
 public:
  /// @throws ConfigError if a pattern is none, or if they match no tensor
  TrainableNames(const std::vector<std::string>& patterns, const std::vector<TensorSpec>& tensors);
  bool match(const std::string& name) const;

 private:
  std::vector<std::regex> patterns_;
};

}  // namespace sftrun::spec
