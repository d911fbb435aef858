#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/core/regex.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/lora_spec.h"

/// Resolves the module and parameter names of `tuning` that select what is trained.
namespace sftrun::spec {

/// @throws ConfigError naming an expression that matches no adapter
void require_patterns_match(const LoraSpec& lora, const ArchSpec& arch);
/// The name that patterns are matched against: the module's, or its weight's if the adapter was
/// selected by parameter name.
std::string update_name(const LoraSpec& lora, const std::string& module);

/// @throws ConfigError for a name that matches nothing in the model, listing the valid names
void require_targets_exist(const LoraSpec& lora, const ArchSpec& arch);

/// @throws ConfigError for a `target_pattern` that matches no module, one that gets no adapter, or one of a part that does not
/// train
void require_pattern_fits(const LoraSpec& lora, const ArchSpec& arch);

/// @throws ConfigError if a part of a model with images that `parts` names has neither an adapter nor fully trained modules
void require_adapters(const LoraSpec& lora, const ArchSpec& arch);

/// A router is selected by its parameter's name only: `gate` is ambiguous, because other layers may
/// have a module of that name.
bool is_target(const LoraSpec& lora, const std::string& module, const LinearSpec& linear,
               const ArchSpec& arch);
/// For the embedding and the head: `all-linear` excludes both, as in peft.
bool is_end_target(const LoraSpec& lora, const std::string& module);
inline constexpr const char* kHeadModule = "lm_head";
inline constexpr const char* kHeadTensor = "lm_head.weight";
std::string embedding_module(const ArchSpec& arch);
/// @throws ConfigError for targets that PiSSA does not support: the embedding, and a head tied to
/// it
void require_pissa_fits(const LoraSpec& lora, const ArchSpec& arch);
/// For expert tensors: matches the whole name or its ending.
bool is_target(const LoraSpec& lora, const std::string& parameter);

/// Whether a tensor belongs to a fully trained module: a module whose name ends in one of `saved`,
/// even in the middle of a word, as in peft.
bool is_saved(const std::vector<std::string>& saved, const std::string& tensor);

/// Number of trained values in adapters and fully trained modules. The head counts as a separate
/// tensor there, even if it is tied to the embedding.
int64_t num_lora_values(const LoraSpec& lora, const ArchSpec& arch);

/// Coefficient of the routers' load-balancing loss: the run's setting, else that of the model's
/// config.json; nullopt: neither is set.
/// @throws ConfigError naming the run's key if the model has no such loss
std::optional<double> aux_loss_coef(std::optional<double> asked, const MixtureSpec& mixture);

/// Names of the modules and expert tensors that get an adapter.
std::set<std::string> adapted_names(const LoraSpec& lora, const ArchSpec& arch);

/// @throws ConfigError for an expression of `tuning.trainable` that matches parameters of parts that do not train, and no others
void require_trainable_parts(const std::vector<std::string>& patterns, const ArchSpec& arch,
                             const TrainedParts& parts);

/// The parameters selected by regular expressions, searched as with Python's re.search.
class TrainableNames {
 public:
  /// @throws ConfigError for a pattern that is invalid, or that no tensor matches
  TrainableNames(const std::vector<std::string>& patterns, const std::vector<TensorSpec>& tensors);
  bool match(const std::string& name) const;

 private:
  static void require_match(const std::string& pattern, const PythonRegex& regex,
                            const std::vector<TensorSpec>& tensors);

  std::vector<PythonRegex> patterns_;
};

}  // namespace sftrun::spec
