#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/regex.h"
#include "sftrun/spec/arch_spec.h"

/// Resolves the module and parameter names of `tuning` that select what is trained.
namespace sftrun::spec {

/// Targets of LoRA; names match as in peft.
struct LoraTargets {
  std::vector<std::string> modules;         ///< name suffixes, or "all-linear"
  std::optional<PythonRegex> pattern = {};  ///< matches whole names; replaces `modules`
  std::vector<std::string> parameters;      ///< name suffixes, for experts and routers
  double dropout = 0;
  std::vector<std::string> saved = {};  ///< `modules_to_save`: fully trained, without an adapter
};

/// A regular expression that matches a whole name, or its end after a dot (peft's get_pattern_key).
class NameEnding {
 public:
  NameEnding(const char* expression) : NameEnding(std::string(expression)) {}
  /// @param where, blame as for PythonRegex, which throws
  NameEnding(std::string expression, std::string where = {}, ExitCode blame = ExitCode::kUsage);

  bool matches(const std::string& name) const { return regex_.matches(name); }
  const std::string& expression() const { return expression_; }

 private:
  std::string expression_;
  PythonRegex regex_;
};

/// Values for single adapters by name, in order: peft's `rank_pattern` and `alpha_pattern`.
using NamePattern = std::vector<std::pair<NameEnding, double>>;

/// The value of the first expression that matches.
std::optional<double> pattern_value(const NamePattern& pattern, const std::string& name);

/// Rank and scale of each adapter. Names are those of modules, or of parameters if the adapter was
/// selected by `LoraTargets::parameters`.
struct LoraSizes {
  int64_t r = 16;
  double alpha = 32;
  bool rslora = false;
  NamePattern rank_pattern, alpha_pattern;
  bool dora = false;  ///< adds a magnitude per row

  int64_t r_of(const std::string& name) const;
  /// alpha / r, or alpha / sqrt(r) (rsLoRA: arXiv 2312.03732)
  double scale_of(const std::string& name) const;
  /// The alpha that gives rank `ranks` the same scale as `name` has with rank `r_of(name)`.
  double alpha_for(const std::string& name, int64_t ranks) const;
};

/// peft's `target_modules` given as one string. @param where, blame as for PythonRegex, which
/// throws
PythonRegex target_pattern(std::string expression, std::string where = {},
                           ExitCode blame = ExitCode::kUsage);

/// @throws ConfigError naming an expression that matches no adapter
void require_patterns_match(const LoraSizes& sizes, const LoraTargets& targets,
                            const ArchSpec& arch);
/// The name that patterns are matched against: the module's, or its weight's if the adapter was
/// selected by parameter name.
std::string update_name(const LoraTargets& targets, const std::string& module);

/// @throws ConfigError for a name that matches nothing in the model, listing the valid names
void require_targets_exist(const LoraTargets& targets, const ArchSpec& arch);

/// A router is selected by its parameter's name only: `gate` is ambiguous, because other layers may
/// have a module of that name.
bool is_target(const LoraTargets& targets, const std::string& module, LinearSlot slot,
               const ArchSpec& arch);
/// For the embedding and the head: `all-linear` excludes both, as in peft.
bool is_end_target(const LoraTargets& targets, const std::string& module);
inline constexpr const char* kHeadModule = "lm_head";
std::string embedding_module(const ArchSpec& arch);
/// @throws ConfigError for targets that PiSSA does not support: the embedding, and a head tied to
/// it
void require_pissa_fits(const LoraTargets& targets, const ArchSpec& arch);
/// For expert tensors: matches the whole name or its ending.
bool is_target(const LoraTargets& targets, const std::string& parameter);

/// Whether a tensor belongs to a fully trained module: a module whose name ends in one of `saved`,
/// even in the middle of a word, as in peft.
bool is_saved(const std::vector<std::string>& saved, const std::string& tensor);

/// Number of trained values in adapters and fully trained modules. The head counts as a separate
/// tensor there, even if it is tied to the embedding.
int64_t num_lora_values(const LoraTargets& targets, const LoraSizes& sizes, const ArchSpec& arch);

/// Coefficient of the routers' load-balancing loss: the run's setting, else that of the model's
/// config.json; nullopt: neither is set.
/// @throws ConfigError naming the run's key if the model has no such loss
std::optional<double> aux_loss_coef(std::optional<double> asked, const MixtureSpec& mixture);

/// Names of the modules and expert tensors that get an adapter.
std::set<std::string> adapted_names(const LoraTargets& targets, const ArchSpec& arch);

/// The parameters selected by regular expressions, searched as with Python's re.search.
class TrainableNames {
 public:
  /// @throws ConfigError for an invalid pattern, or if no tensor matches
  TrainableNames(const std::vector<std::string>& patterns, const std::vector<TensorSpec>& tensors);
  bool match(const std::string& name) const;

 private:
  std::vector<PythonRegex> patterns_;
};

}  // namespace sftrun::spec
