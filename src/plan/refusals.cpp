#include "sftrun/plan/refusals.h"

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/tensor_division.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {

config::ModelFacts model_facts(const spec::ArchSpec& arch, const config::RunConfig& config) {
  const std::optional<double>& asked = config.train.router_aux_loss_coef;
  const std::optional<double> coef =
      config.train.objective_info().has_aux_loss ? spec::aux_loss_coef(asked, arch.mixture) : asked;
  return {
      .shares_keys = std::any_of(arch.layers.begin(), arch.layers.end(),
                                 [](const spec::LayerSpec& layer) { return layer.keys_of >= 0; }),
      .has_per_layer_inputs = arch.per_layer_size > 0,
      .norms_whole_queries = arch.qk_norm == spec::QkNorm::kWhole,
      .balances_experts = coef.value_or(0) > 0};
}

void require_model(const spec::ArchSpec& arch, const config::RunConfig& config,
                   const config::PlaceOfDivision& place_of) {
  config::require_possible(config, config.parallel.axes, config::KnownBy::kModel,
                           model_facts(arch, config), place_of);
}

void require_parts(const spec::ArchSpec& arch, int64_t parts, const std::string& place) {
  spec::require_divisible(arch, {.size = parts}, place);
}

std::string refusal_of(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const StoredBlocks& blocks) {
  const config::Axes& axes = config.parallel.axes;
  const config::Refusal* refusal = config::find_refusal(config, axes, model_facts(arch, config));
  if (refusal != nullptr) return config::message_of(*refusal, config);
  try {
    if (axes.has_stages()) require_stages(arch, config, {});
  } catch (const ConfigError& error) {
    return error.message();
  }
  return axes.tp > 1 ? refusal_of_parts(arch, config.tuning, blocks, axes.tp) : "";
}

}  // namespace sftrun::plan
