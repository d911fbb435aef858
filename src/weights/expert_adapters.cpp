#include "expert_adapters.h"

#include <algorithm>

#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::weights {
namespace {

constexpr std::string_view kBaseLayer = ".base_layer";

/// Gate's rows, then up's.
void place_a(const std::vector<float>& a, const OldModule& old, LoraPair& pair) {
  const int64_t first = old.expert * pair.r + old.matrix * pair.r / old.matrices;
  std::copy(a.begin(), a.end(), pair.a.begin() + first * pair.in_features);
}

/// Gate's columns in gate's rows, up's in up's, zeros elsewhere.
void place_b(const std::vector<float>& b, const OldModule& old, LoraPair& pair) {
  const int64_t r = pair.r / old.matrices;
  for (int64_t row = 0; row < old.rows; ++row) {
    for (int64_t i = 0; i < r; ++i) {
      const int64_t to = (old.matrix * old.rows + row) * pair.r + old.matrix * r + i;
      pair.b[static_cast<size_t>(to * pair.num_experts + old.expert)] =
          b[static_cast<size_t>(row * r + i)];
    }
  }
}

LoraPair& experts_pair(AdapterTensors& result, const spec::TensorSpec& spec, int64_t r) {
  LoraPair& pair = result.lora[spec.name];
  pair.num_experts = spec.shape[0];
  pair.out_features = spec.shape[1];
  pair.in_features = spec.shape[2];
  pair.r = r;
  return pair;
}

}  // namespace

bool ExpertAdapters::read(const SafetensorsEntry& entry, const std::string& name,
                          AdapterTensors& result) {
  return read_single(entry, name, result) || read_layers(entry, name, result);
}

void ExpertAdapters::require_all() const {
  for (const auto& [module, count] : old_tensors_) {
    const size_t matrices = specs_.at(module).parts.size();
    if (count != 2 * matrices)
      values_.fail(
          module,
          fmt::format("has {} of {} expected lora_A and lora_B tensors", count, 2 * matrices),
          "an adapter of single experts must cover all experts of the layer");
  }
}

/// Copies A or B of one expert's matrix into that of all experts.
bool ExpertAdapters::read_single(const SafetensorsEntry& entry, const std::string& name,
                                 AdapterTensors& result) {
  const auto found = old_modules_.find(module_of_update(name));
  if (found == old_modules_.end()) return false;
  const OldModule& old = found->second;
  if (old.whole->role != spec::TensorRole::kExperts) return false;
  if (lora_.dora)
    values_.fail(entry.name, "belongs to a single expert's DoRA adapter, which is not supported");
  const bool is_a = name.ends_with(kLoraA);
  const int64_t r = lora_.r_of(module_of_update(name));
  const double scale = lora_.scale_of(module_of_update(name));
  const std::vector<float> read = is_a ? values_.read(entry, {r, old.whole->shape[2]}, r)
                                       : values_.read(entry, {old.rows, r}, r);
  const auto others = result.lora.find(old.whole->name);
  if (others != result.lora.end() &&
      (others->second.r != old.matrices * r || others->second.scale != scale)) {
    values_.fail(entry.name,
                 "has another rank or scale than the layer's other experts, or than gate or up",
                 "use the same rank and scale for all of them (rank_pattern, alpha_pattern)");
  }
  LoraPair& pair = experts_pair(result, *old.whole, old.matrices * r);
  pair.scale = scale;
  pair.a.resize(static_cast<size_t>(pair.num_experts * pair.r * pair.in_features));
  pair.b.resize(static_cast<size_t>(pair.out_features * pair.r * pair.num_experts));
  is_a ? place_a(read, old, pair) : place_b(read, old, pair);
  ++old_tensors_[old.whole->name];
  return true;
}

/// The experts' tensor for a module name of PEFT; nullptr: not in this model.
const spec::TensorSpec* ExpertAdapters::experts_of(const std::string& module) const {
  const std::string experts = module.substr(
      0, module.ends_with(kBaseLayer) ? module.size() - kBaseLayer.size() : module.size());
  const std::string gate_up = experts + ".gate_up_proj", down = experts + ".down_proj";
  const bool both = is_target(gate_up) && is_target(down);
  for (const std::string& parameter : {gate_up, down}) {
    const auto found = specs_.find(parameter);
    const bool is_experts =
        found != specs_.end() && found->second.role == spec::TensorRole::kExperts;
    if (is_experts && is_target(parameter) && peft_expert_module(parameter, both) == module)
      return &found->second;
  }
  return nullptr;
}

bool ExpertAdapters::is_target(const std::string& parameter) const {
  return std::any_of(lora_.target_parameters.begin(), lora_.target_parameters.end(),
                     [&](const std::string& ending) { return ends_with_name(parameter, ending); });
}

bool ExpertAdapters::read_layers(const SafetensorsEntry& entry, const std::string& name,
                                 AdapterTensors& result) const {
  const std::string module = module_of_update(name);
  const spec::TensorSpec* spec = module.empty() ? nullptr : experts_of(module);
  if (spec == nullptr) return false;
  LoraPair& pair = experts_pair(result, *spec, lora_.r_of(spec->name));
  pair.scale = lora_.scale_of(spec->name);
  const int64_t ranks = pair.num_experts * pair.r;
  if (name.ends_with(kLoraA))
    pair.a = values_.read(entry, {ranks, pair.in_features}, pair.r);
  else
    pair.b = values_.read(entry, {pair.out_features, ranks}, pair.r);
  return true;
}

}  // namespace sftrun::weights
