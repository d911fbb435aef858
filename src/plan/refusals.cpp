#include "sftrun/plan/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/step_memory.h"
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

namespace {

/// The heads of a mixer that compute, and those of keys that several of them read.
struct MixerHeads {
  int64_t reading = 0, read = 0;
  const char* what = "";
};

MixerHeads heads_of(const spec::ArchSpec& arch, int64_t layer) {
  if (arch.layers[static_cast<size_t>(layer)].mixer == spec::Mixer::kDeltaNet)
    return {arch.delta_net.num_value_heads, arch.delta_net.num_key_heads, "value heads"};
  const spec::AttentionSizes sizes = spec::attention_sizes(arch, layer);
  return {sizes.num_heads, sizes.num_kv_heads, "attention heads"};
}

/// Each rank has some of the heads, and those of keys that they read: several, or a copy of one.
bool divides(const MixerHeads& heads, int64_t ranks) {
  return heads.reading % ranks == 0 && (heads.read % ranks == 0 || ranks % heads.read == 0);
}

/// The first mixer whose heads cannot be divided.
std::optional<MixerHeads> undivided_heads(const spec::ArchSpec& arch, int64_t ranks) {
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    if (const MixerHeads heads = heads_of(arch, layer); !divides(heads, ranks)) return heads;
  return std::nullopt;
}

}  // namespace

void require_shared_heads(const spec::ArchSpec& arch, const config::Axes& axes,
                          const std::string& place) {
  const spec::ArchSpec part = device_arch(arch, axes);
  const auto heads = undivided_heads(part, axes.cp);
  if (!heads) return;
  std::vector<std::string> sizes;
  for (int64_t size = 2; size <= heads->reading; ++size)
    if (!undivided_heads(part, size)) sizes.push_back(std::to_string(size));
  throw ConfigError(
      fmt::format(
          "a device has {} {} of the model and {} of keys, which cannot be divided over the "
          "{} devices that share a sequence",
          heads->reading, heads->what, heads->read, axes.cp),
      place,
      sizes.empty() ? std::string("remove parallel.cp")
                    : fmt::format("set parallel.cp to {}", joined(sizes, " or ")));
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
  if (axes.tp > 1)
    if (std::string refused = refusal_of_parts(arch, config.tuning, blocks, axes.tp);
        !refused.empty())
      return refused;
  try {
    if (axes.cp > 1) require_shared_heads(arch, axes, {});
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "";
}

}  // namespace sftrun::plan
