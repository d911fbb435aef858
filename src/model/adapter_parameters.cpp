#include "adapter_parameters.h"

#include <optional>
#include <utility>

#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/peft.h"

namespace sftrun::model {
namespace {

void set_roles(layers::Parameter* a, layers::Parameter* b, bool of_embedding) {
  using enum TensorRole;
  a->role = of_embedding ? kEmbeddingLora : kLoraA;
  b->role = of_embedding ? kEmbeddingLora : kLoraB;
}

}  // namespace

layers::Parameter* AdapterParameters::add(const std::string& name, std::vector<int64_t> shape,
                                          const TensorSlice* slice, int64_t unit, bool decays) {
  if (slice != nullptr) shape[static_cast<size_t>(slice->dim)] = slice->size();
  layers::Parameter* parameter = store_.add(name, std::move(shape), unit, decays);
  if (slice != nullptr) parameter->slice = *slice;
  return parameter;
}

layers::LoraAdapter AdapterParameters::lora(const Update& update) {
  const int64_t r = lora_.r_of(update.pattern_name), unit = update.unit;
  const auto [a_name, b_name] = update.of_embedding ? weights::embedding_lora_names(update.module)
                                                    : weights::lora_names(update.module);
  const bool by_outputs = update.division == Division::kOutputs,
             by_inputs = update.division == Division::kInputs;
  std::optional<TensorSlice> inputs, outputs;
  if (by_inputs) inputs = moved_to(1, *update.slice);
  if (by_outputs) outputs = moved_to(0, *update.slice);
  const auto or_null = [](const auto& slice) { return slice ? &*slice : nullptr; };
  layers::LoraAdapter adapter;
  adapter.a = add(a_name, {r, update.in}, or_null(inputs), unit, true);
  adapter.b = add(b_name, {update.out, r}, or_null(outputs), unit, true);
  // A whole factor of a divided product has a gradient from each part.
  adapter.a->has_partial_gradient = by_outputs;
  adapter.b->has_partial_gradient = by_inputs;
  adapter.inputs = inputs;
  set_roles(adapter.a, adapter.b, update.of_embedding);
  if (lora_.dora) {
    adapter.magnitude =
        add(weights::magnitude_name(update.module), {update.out}, or_null(outputs), unit, true);
    adapter.magnitude->role = TensorRole::kMagnitude;
    adapter.magnitude->part = update.part;
  }
  adapter.a->part = adapter.b->part = update.part;
  adapter.scale = lora_.scale_of(update.pattern_name);
  adapter.module_number = update.number;
  return adapter;
}

layers::ExpertLora AdapterParameters::experts(const std::string& name, const spec::ExpertSpec& spec,
                                              const TensorSlice* slice, int64_t unit,
                                              uint32_t number) {
  const int64_t r = lora_.r_of(name);
  const int64_t experts = arch_.mixture.num_experts;
  const std::string module = peft_module(name);
  layers::ExpertLora adapter;
  // [experts, outputs, inputs] divided by outputs or by inputs, which are at the same places in B
  // [experts, outputs, r] and A [experts, r, inputs].
  const bool by_inputs = slice != nullptr && slice->dim == 2,
             by_outputs = slice != nullptr && slice->dim == 1;
  adapter.a = add(weights::lora_a_name(module), {experts, r, spec.in_features},
                  by_inputs ? slice : nullptr, unit, true);
  adapter.a->layout.shape = {experts * r, spec.in_features};
  adapter.b = add(weights::lora_b_name(module), {experts, spec.out_features, r},
                  by_outputs ? slice : nullptr, unit, true);
  adapter.a->has_partial_gradient = by_outputs;
  adapter.b->has_partial_gradient = by_inputs;
  adapter.b->layout = layout_of_b(spec, r);
  set_roles(adapter.a, adapter.b, /*of_embedding=*/false);
  adapter.scale = lora_.scale_of(name);
  adapter.module_number = number;
  return adapter;
}

/// peft's order of B: the expert index varies fastest, and rows follow the files' columns.
FileLayout AdapterParameters::layout_of_b(const spec::ExpertSpec& spec, int64_t r) const {
  const int64_t experts = arch_.mixture.num_experts, out = spec.out_features;
  if (spec.rows_alternate) return {{experts, 2, out / 2, r}, {2, 1, 3, 0}, {out, r * experts}};
  return {{experts, out, r}, {1, 2, 0}, {out, r * experts}};
}

std::string AdapterParameters::peft_module(const std::string& name) const {
  const std::string experts = name.substr(0, name.rfind('.'));
  return weights::peft_expert_module(name, spec::is_target(lora_, experts + ".gate_up_proj") &&
                                               spec::is_target(lora_, experts + ".down_proj"));
}

}  // namespace sftrun::model
