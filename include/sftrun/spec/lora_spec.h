#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/model_part.h"
#include "sftrun/core/regex.h"

/// The settings of a LoRA adapter, for planning, the model and the adapter's files. `tuning.lora`
/// becomes a LoraSpec in plan::lora_spec, PEFT's adapter_config.json in weights::AdapterConfig.
namespace sftrun::spec {

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

/// peft's `target_modules` given as one string. @param where, blame as for PythonRegex, which
/// throws
PythonRegex target_pattern(std::string expression, std::string where = {},
                           ExitCode blame = ExitCode::kUsage);

/// LoRA, arXiv:2106.09685; names match as in peft.
struct LoraSpec {
  int64_t r = 16;
  double alpha = 32, dropout = 0;
  bool rslora = false;  ///< scale by alpha / sqrt(r), arXiv:2312.03732
  /// Suffixes of module names, or "all-linear": all linear layers except the head.
  std::vector<std::string> target_modules = {"all-linear"};
  /// Matches whole module names; replaces `target_modules`.
  std::optional<PythonRegex> target_pattern = {};
  /// Suffixes of names of expert tensors and router weights: "mlp.experts.down_proj".
  std::vector<std::string> target_parameters = {};
  /// For single adapters, by name of the module, or of the parameter if the adapter was selected by
  /// `target_parameters` (`update_name`).
  NamePattern rank_pattern = {}, alpha_pattern = {};
  bool dora = false;   ///< adds a magnitude per row, arXiv:2402.09353
  bool pissa = false;  ///< subtracts the initial adapter from the base, arXiv:2404.02948
  /// Modules trained in full, by suffix of their names. If the embedding or a head tied to it is
  /// among them, the two become separate tensors, as in peft.
  std::vector<std::string> modules_to_save = {};
  /// Of a model with images: the parts in which names are looked for.
  TrainedParts parts = TrainedParts::text();

  int64_t r_of(const std::string& name) const;
  /// alpha / r, or alpha / sqrt(r)
  double scale_of(const std::string& name) const;
  /// The alpha that gives rank `ranks` the same scale as `name` has with rank `r_of(name)`.
  double alpha_for(const std::string& name, int64_t ranks) const;
  /// `target_modules`, or the expression that replaces them.
  std::vector<std::string> target_texts() const;
};

}  // namespace sftrun::spec
