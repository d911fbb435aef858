#include "sftrun/plan/sequence_cost.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "sftrun/plan/stages.h"

namespace sftrun::plan {
namespace {

/// How often something is computed in a step.
struct Passes {
  bool has_backward = false;  ///< through it
  bool trains_matrix = false, again = false;

  /// A product with a matrix, and in the backward pass with the gradients of outputs for inputs and for the matrix.
  int64_t of_matrix() const {
    return 1 + (has_backward ? 1 : 0) + (trains_matrix ? 1 : 0) + (again ? 1 : 0);
  }
  /// Of scores and values; the backward pass has five products (FlashAttention, arXiv:2205.14135, algorithm 4).
  int64_t of_attention() const { return 2 + (has_backward ? 5 : 0) + (again ? 2 : 0); }
};

bool computes_layers_again(const config::RunConfig& config) {
  return config.train.gradient_checkpointing == config::Checkpointing::kLayer;
}

int64_t products_of(const spec::TowerLinear& linear) {
  return linear.in_features * linear.out_features;
}

/// What units of a tower compute.
class TowerProducts {
 public:
  TowerProducts(const spec::ArchSpec& arch, const config::RunConfig& config, const TowerUse& use)
      : spec_(*arch.vision),
        training_(arch, config.tuning, use),
        again_(computes_layers_again(config)) {}

  int64_t of_patches() const {
    return passes(0, spec_.patches.module, false).of_matrix() * spec_.patches.values() *
           spec_.hidden_size;
  }
  int64_t of_layer(int64_t layer) const {
    std::vector<spec::TowerLinear> linears = spec_.layer.qkv;
    linears.push_back(spec_.layer.output);
    linears.insert(linears.end(), spec_.layer.up.begin(), spec_.layer.up.end());
    linears.push_back(spec_.layer.down);
    const std::string prefix = spec_.layers + std::to_string(layer) + ".";
    int64_t products = 0;
    for (const spec::TowerLinear& linear : linears)
      products +=
          passes(1 + layer, prefix + linear.module, again_).of_matrix() * products_of(linear);
    return products;
  }
  /// Of two patches that see each other.
  int64_t of_pair(int64_t layer) const {
    return passes(1 + layer, {}, again_).of_attention() * spec_.num_heads * spec_.head_dim;
  }
  /// Of a patch, several of which are a row.
  int64_t of_mergers() const {
    int64_t products = of_merger(spec_.merger);
    for (const spec::Merger& merger : spec_.deepstack) products += of_merger(merger);
    return products;
  }

 private:
  Passes passes(int64_t unit, const std::string& module, bool again) const {
    const bool has_backward = training_.at_or_below(unit);
    return {.has_backward = has_backward,
            .trains_matrix = training_.trains(module + ".weight") || training_.trains(module),
            .again = again && has_backward};
  }
  int64_t of_merger(const spec::Merger& merger) const {
    int64_t products = 0;
    for (const spec::Merger::Step& step : merger.steps)
      products += passes(1 + spec_.num_used_layers, step.linear.module, again_).of_matrix() *
                  products_of(step.linear);
    return products / (merger.side * merger.side);
  }

  const spec::VisionSpec& spec_;
  TowerTraining training_;
  bool again_;
};

/// Of `count` things that have so many products each.
int64_t thousands(int64_t count, int64_t products) {
  return count * products / 1000;
}

}  // namespace

SequenceCost::SequenceCost(const spec::ArchSpec& arch, const config::RunConfig& config,
                           const TowerUse& tower) {
  add_text(arch, config);
  if (arch.vision && tower.is_loaded) add_tower(arch, config, tower);
}

void SequenceCost::add_text(const spec::ArchSpec& arch, const config::RunConfig& config) {
  // What trains is in the text model or before it.
  const Passes passes{.has_backward = true,
                      .trains_matrix = !config.tuning.trains_adapter() &&
                                       config.tuning.train_parts.trained().language,
                      .again = computes_layers_again(config)};
  // Products of a token are linear in the length of its sequence.
  const std::vector<double> alone = unit_costs(arch, 0), with_another = unit_costs(arch, 1);
  for (size_t unit = 0; unit + 1 < alone.size(); ++unit) {
    token_ += passes.of_matrix() * std::llround(alone[unit]);
    // A token sees half of the others on average: `unit_costs` counts both products, of half of them each.
    token_pair_ += passes.of_attention() * std::llround(with_another[unit] - alone[unit]) / 2;
  }
  const Passes of_head{.has_backward = true, .trains_matrix = passes.trains_matrix};
  label_ = of_head.of_matrix() * std::llround(alone.back());
}

void SequenceCost::add_tower(const spec::ArchSpec& arch, const config::RunConfig& config,
                             const TowerUse& tower) {
  const spec::VisionSpec& spec = *arch.vision;
  const TowerProducts products(arch, config, tower);
  const int64_t side = spec.window_side * spec.merger.side;
  window_ = side * side;
  patch_ = products.of_patches() + products.of_mergers();
  for (int64_t layer = 0; layer < spec.num_used_layers; ++layer) {
    patch_ += products.of_layer(layer);
    const bool has_windows =
        spec.window_side > 0 && std::ranges::count(spec.full_layers, layer) == 0;
    (has_windows ? window_pair_ : patch_pair_) += products.of_pair(layer);
  }
}

int64_t SequenceCost::of_document(int64_t tokens, int64_t label_tokens) const {
  return thousands(tokens, token_) + tokens * thousands(tokens, token_pair_) +
         thousands(label_tokens, label_);
}

int64_t SequenceCost::of_tile(int64_t patches) const {
  return thousands(patches, patch_) + patches * thousands(patches, patch_pair_) +
         patches * thousands(std::min(patches, window_), window_pair_);
}

}  // namespace sftrun::plan
