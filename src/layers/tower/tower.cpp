#include "sftrun/layers/tower.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

namespace sftrun::layers {
namespace {

TowerNorm norm_of(spec::TowerNorm spec, const std::string& prefix) {
  if (!spec.module.empty()) spec.module = prefix + spec.module;
  TowerNorm norm{.spec = std::move(spec)};
  norm.rms.eps = norm.spec.eps;
  norm.rms.offset = norm.spec.kind == spec::TowerNormKind::kRmsAddsOne ? 1 : 0;
  return norm;
}

TowerLinear linear_of(spec::TowerLinear spec, const std::string& prefix) {
  spec.module = prefix + spec.module;
  spec.bounds = prefix + spec.bounds;
  TowerLinear linear{.spec = std::move(spec)};
  linear.linear.name = linear.spec.module;
  return linear;
}

std::vector<TowerLinear> linears_of(const std::vector<spec::TowerLinear>& specs,
                                    const std::string& prefix) {
  std::vector<TowerLinear> linears;
  for (const spec::TowerLinear& spec : specs) linears.push_back(linear_of(spec, prefix));
  return linears;
}

TowerBlock block_of(const spec::TowerLayer& spec, const std::string& prefix) {
  TowerBlock block;
  block.attention_in = norm_of(spec.attention_in, prefix);
  block.attention_out = norm_of(spec.attention_out, prefix);
  block.mlp_in = norm_of(spec.mlp_in, prefix);
  block.mlp_out = norm_of(spec.mlp_out, prefix);
  block.qkv = linears_of(spec.qkv, prefix);
  block.query = norm_of(spec.query, prefix);
  block.key = norm_of(spec.key, prefix);
  block.value = norm_of(spec.value, prefix);
  block.output = linear_of(spec.output, prefix);
  block.up = linears_of(spec.up, prefix);
  block.down = linear_of(spec.down, prefix);
  return block;
}

TowerMerger merger_of(const spec::Merger& spec) {
  TowerMerger merger{
      .spec = spec, .before = norm_of(spec.before, ""), .after = norm_of(spec.after, "")};
  for (const spec::Merger::Step& step : spec.steps)
    merger.steps.push_back(linear_of(step.linear, ""));
  return merger;
}

std::string layer_prefix(const spec::VisionSpec& spec, int64_t layer) {
  return fmt::format("{}{}.", spec.layers, layer);
}

class MemberList {
 public:
  void begin_unit() { units.emplace_back(); }
  void add(const std::string& name, Weight& weight) {
    if (!name.empty()) weights().push_back({name, place_of(weight)});
  }
  void add(TowerNorm& norm) {
    if (norm.spec.module.empty()) return;
    const std::string& module = norm.spec.module;
    if (norm.spec.kind == spec::TowerNormKind::kLayerNorm) {
      add(module + ".weight", norm.weight);
      add(module + ".bias", norm.bias);
    } else {
      weights().push_back({module + ".weight", place_of(norm.rms)});
    }
  }
  void add(TowerLinear& linear) {
    const spec::TowerLinear& spec = linear.spec;
    units.back().linears.push_back(
        {&linear.linear, spec.in_features, spec.out_features, spec.bias});
    if (!spec.clamps) return;
    add(spec.bounds + ".input_min", linear.bounds.input_min);
    add(spec.bounds + ".input_max", linear.bounds.input_max);
    add(spec.bounds + ".output_min", linear.bounds.output_min);
    add(spec.bounds + ".output_max", linear.bounds.output_max);
  }
  /// A matrix that is no linear layer in transformers: it is neither quantised nor adapted.
  void add_matrix(const std::string& name, TowerLinear& linear) {
    Linear& of = linear.linear;
    weights().push_back({name, {&of.weight, &of.weight_parameter}});
    if (linear.spec.bias)
      weights().push_back({linear.spec.module + ".bias", {&of.bias, &of.bias_parameter}});
  }
  void add(std::vector<TowerLinear>& linears) {
    for (TowerLinear& linear : linears) add(linear);
  }
  void add(TowerMerger& merger) {
    add(merger.spec.std_bias, merger.std_bias);
    add(merger.spec.std_scale, merger.std_scale);
    add(merger.before), add(merger.after);
    for (size_t i = 0; i < merger.steps.size(); ++i) {
      if (i == 0 && merger.spec.is_transposed_parameter)
        add_matrix(merger.steps[i].spec.module, merger.steps[i]);
      else
        add(merger.steps[i]);
    }
  }

  std::vector<TowerMembers> units;

 private:
  std::vector<TowerMembers::WeightMember>& weights() { return units.back().weights; }
};

void add_block(MemberList& list, TowerBlock& block, const spec::TowerLayer& spec,
               const std::string& prefix) {
  list.add(block.attention_in), list.add(block.qkv);
  list.add(block.query), list.add(block.key), list.add(block.value);
  list.add(block.output), list.add(block.attention_out);
  if (!spec.attention_scale.empty()) list.add(prefix + spec.attention_scale, block.attention_scale);
  list.add(block.mlp_in), list.add(block.up), list.add(block.down), list.add(block.mlp_out);
  if (!spec.mlp_scale.empty()) list.add(prefix + spec.mlp_scale, block.mlp_scale);
}

std::vector<TowerNorm*> norms_of(Tower& tower) {
  std::vector<TowerNorm*> norms = {&tower.pre_norm, &tower.post_norm, &tower.merger.before,
                                   &tower.merger.after};
  for (TowerBlock& block : tower.blocks)
    norms.insert(norms.end(), {&block.attention_in, &block.attention_out, &block.query, &block.key,
                               &block.value, &block.mlp_in, &block.mlp_out});
  for (TowerMerger& merger : tower.deepstack)
    norms.insert(norms.end(), {&merger.before, &merger.after});
  return norms;
}

}  // namespace

Tower make_tower(spec::VisionSpec spec) {
  Tower tower;
  tower.patches = linear_of({.module = spec.patches.module,
                             .in_features = spec.patches.values(),
                             .out_features = spec.hidden_size,
                             .bias = spec.patches.bias},
                            "");
  tower.pre_norm = norm_of(spec.pre_norm, "");
  tower.post_norm = norm_of(spec.uses_post_norm ? spec.post_norm : spec::TowerNorm{}, "");
  for (int64_t layer = 0; layer < spec.num_used_layers; ++layer)
    tower.blocks.push_back(block_of(spec.layer, layer_prefix(spec, layer)));
  tower.merger = merger_of(spec.merger);
  for (const spec::Merger& merger : spec.deepstack) tower.deepstack.push_back(merger_of(merger));
  tower.spec = std::move(spec);
  return tower;
}

void complete(Tower& tower, at::ScalarType dtype, at::Device device) {
  tower.dtype = dtype;
  for (TowerNorm* norm : norms_of(tower)) {
    if (norm->exists() && norm->spec.kind == spec::TowerNormKind::kRmsPlain)
      norm->rms.weight =
          at::ones({norm->spec.size}, at::TensorOptions().dtype(dtype).device(device));
  }
}

std::vector<TowerMembers> members_of(Tower& tower) {
  const spec::VisionSpec& spec = tower.spec;
  MemberList list;
  list.begin_unit();
  if (spec.patches.is_convolution)
    list.add_matrix(spec.patches.module + ".weight", tower.patches);
  else
    list.add(tower.patches);
  list.add(spec.class_token, tower.class_token);
  list.add(spec.position_table, tower.positions);
  list.add(tower.pre_norm);
  for (size_t layer = 0; layer < tower.blocks.size(); ++layer) {
    list.begin_unit();
    add_block(list, tower.blocks[layer], spec.layer,
              layer_prefix(spec, static_cast<int64_t>(layer)));
  }
  list.begin_unit();
  list.add(tower.post_norm);
  list.add(tower.merger);
  list.add(spec.newline, tower.newline);
  for (TowerMerger& merger : tower.deepstack) list.add(merger);
  return std::move(list.units);
}

}  // namespace sftrun::layers
