#include "sftrun/spec/lora_spec.h"

#include <cmath>

#include "sftrun/core/python_syntax.h"

namespace sftrun::spec {
namespace {

/// Compiles the expression alone first, so that an error message shows it without our brackets.
std::string within_brackets(const std::string& expression, const std::string& where,
                            ExitCode blame) {
  PythonRegex(expression, PythonRegex::Matches::kSearch, where, blame);
  return peft_key_pattern(expression);
}

}  // namespace

NameEnding::NameEnding(std::string expression, std::string where, ExitCode blame)
    : expression_(std::move(expression)),
      regex_(within_brackets(expression_, where, blame), PythonRegex::Matches::kStart, where,
             blame) {}

PythonRegex target_pattern(std::string expression, std::string where, ExitCode blame) {
  return {std::move(expression), PythonRegex::Matches::kWhole, std::move(where), blame};
}

std::optional<double> pattern_value(const NamePattern& pattern, const std::string& name) {
  for (const auto& [expression, value] : pattern) {
    if (expression.matches(name)) return value;
  }
  return std::nullopt;
}

int64_t LoraSpec::r_of(const std::string& name) const {
  const auto own = pattern_value(rank_pattern, name);
  return own ? static_cast<int64_t>(*own) : r;
}

double LoraSpec::scale_of(const std::string& name) const {
  const auto ranks = static_cast<double>(r_of(name));
  return pattern_value(alpha_pattern, name).value_or(alpha) / (rslora ? std::sqrt(ranks) : ranks);
}

double LoraSpec::alpha_for(const std::string& name, int64_t ranks) const {
  const auto wide = static_cast<double>(ranks);
  return scale_of(name) * (rslora ? std::sqrt(wide) : wide);
}

std::vector<std::string> LoraSpec::target_texts() const {
  return target_pattern ? std::vector<std::string>{target_pattern->pattern()} : target_modules;
}

}  // namespace sftrun::spec
