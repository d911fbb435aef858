#include "adapter_modules.h"

#include "sftrun/spec/vision_tensors.h"

namespace sftrun::weights {

std::string module_of_update(const std::string& name) {
  for (const std::string_view ending :
       {kLoraA, kLoraB, kLoraEmbeddingA, kLoraEmbeddingB, kLoraMagnitude}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

std::map<std::string, OldModule> old_modules(const std::map<std::string, spec::TensorSpec>& specs) {
  std::map<std::string, OldModule> modules;
  for (const auto& [name, spec] : specs) {
    const bool is_experts = spec.role == spec::TensorRole::kExperts;
    const auto count = static_cast<int64_t>(spec.parts.size());
    const int64_t matrices = is_experts ? count / spec.shape[0] : 1;
    for (int64_t i = 0; i < count; ++i) {
      const spec::TensorPart& part = spec.parts[static_cast<size_t>(i)];
      if (!part.name.ends_with(kWeightName)) continue;
      modules[part.name.substr(0, part.name.size() - kWeightName.size())] = {
          &spec, i / matrices, i % matrices, matrices, part.shape[0]};
    }
  }
  return modules;
}

std::map<std::string, spec::TensorSpec> specs_by_name(const spec::ArchSpec& arch) {
  std::map<std::string, spec::TensorSpec> specs;
  for (spec::TensorSpec& spec : spec::tensor_specs(arch)) specs[spec.name] = std::move(spec);
  if (!arch.vision) return specs;
  for (spec::TensorSpec& spec : spec::vision_tensor_specs(*arch.vision, arch.hidden_size))
    specs[spec.name] = std::move(spec);
  return specs;
}

}  // namespace sftrun::weights
