#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/regex.h"
#include "sftrun/spec/arch_spec.h"

/// What configurations ask to train, by the names of modules and parameters.
namespace sftrun::spec {

/// Where low-rank updates go; names as peft matches them.
struct LoraTargets {
  std::vector<std::string> modules;         ///< endings of names, or "all-linear"
  std::optional<PythonRegex> pattern = {};  ///< of whole names, instead of modules
  std::vector<std::string> parameters;      ///< of experts and routers, endings of names
  double dropout = 0;
  std::vector<std::string> saved = {};  ///< `modules_to_save`: trained whole, and not adapted
};

/// A regular expression that is a whole name, or its end behind a dot (peft's get_pattern_key).
class NameEnding {
 public:
  NameEnding(const char* expression) : NameEnding(std::string(expression)) {}
  /// @param where, blame as of PythonRegex, which throws
  NameEnding(std::string expression, std::string where = {}, ExitCode blame = ExitCode::kUsage);

  bool matches(const std::string& name) const { return regex_.matches(name); }
  const std::string& expression() const { return expression_; }

 private:
  std::string expression_;
  PythonRegex regex_;
};

/// Numbers of single updates by their names, in order: peft's `rank_pattern` and `alpha_pattern`.
using NamePattern = std::vector<std::pair<NameEnding, double>>;

/// That of the first expression that matches.
std::optional<double> pattern_value(const NamePattern& pattern, const std::string& name);

/// Rank and scale of each update. Names are those of modules, or of parameters where
/// `LoraTargets::parameters` asks for the update.
struct LoraSizes {
  int64_t r = 16;
  double alpha = 32;
  bool rslora = false;
  NamePattern rank_pattern, alpha_pattern;
  bool dora = false;  ///< with a magnitude for each row

  int64_t r_of(const std::string& name) const;
  /// alpha / r, or alpha / sqrt(r) (rsLoRA: arXiv 2312.03732)
  double scale_of(const std::string& name) const;
  /// The sum of `ranks` in the scale of `r_of(name)`: what alpha has to be.
  double alpha_for(const std::string& name, int64_t ranks) const;
};

/// peft's `target_modules` as one string. @param where, blame as of PythonRegex, which throws
PythonRegex target_pattern(std::string expression, std::string where = {},
                           ExitCode blame = ExitCode::kUsage);

/// @throws ConfigError for an expression that no update's name matches, naming it
void require_patterns_match(const LoraSizes& sizes, const LoraTargets& targets,
                            const ArchSpec& arch);
/// What patterns match of a linear module: its name, or its weight's where that asks for the
/// update.
std::string update_name(const LoraTargets& targets, const std::string& module);

/// @throws ConfigError for a name that the model has nothing of, naming what there is
void require_targets_exist(const LoraTargets& targets, const ArchSpec& arch);

/// A router's update is asked for by its parameter's name alone: `gate` would mean another thing in
/// other layers.
bool is_target(const LoraTargets& targets, const std::string& module, LinearSlot slot,
               const ArchSpec& arch);
/// Of the embedding and the head: `all-linear` leaves both out, as in peft.
bool is_end_target(const LoraTargets& targets, const std::string& module);
inline constexpr const char* kHeadModule = "lm_head";
std::string embedding_module(const ArchSpec& arch);
/// @throws ConfigError for targets of which PiSSA takes no principal part: the embedding, and a
/// head that is tied to it
void require_pissa_fits(const LoraTargets& targets, const ArchSpec& arch);
/// Of experts' tensors: the whole name or its ending.
bool is_target(const LoraTargets& targets, const std::string& parameter);

/// Whether a tensor belongs to a module that trains whole: one whose name ends in one of `saved`,
/// be it in the middle of a word, as peft has it.
bool is_saved(const std::vector<std::string>& saved, const std::string& tensor);

/// How many values the updates hold, and the modules that train whole. The head counts as a tensor
/// of its own there, also where it is tied to the embedding.
int64_t num_lora_values(const LoraTargets& targets, const LoraSizes& sizes, const ArchSpec& arch);

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
  std::vector<PythonRegex> patterns_;
};

}  // namespace sftrun::spec
