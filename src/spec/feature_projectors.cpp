#include "sftrun/spec/feature_projectors.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::spec {
namespace {

std::string sizes_of(const FeatureProjector& projector) {
  return fmt::format("input_width {}, hidden {}{}", projector.input_width, projector.hidden,
                     projector.tokens == 0 ? "" : fmt::format(", tokens {}", projector.tokens));
}

}  // namespace

bool is_of_projectors(const ArchSpec& arch, std::string_view tensor) {
  return std::any_of(arch.projectors.begin(), arch.projectors.end(),
                     [&](const FeatureProjector& projector) {
                       return tensor.starts_with(projector.module() + ".");
                     });
}

bool is_projector_name(std::string_view tensor) {
  return tensor.starts_with("projectors.");
}

int64_t projector_named(const ArchSpec& arch, const std::string& name) {
  const auto found =
      std::find_if(arch.projectors.begin(), arch.projectors.end(),
                   [&](const FeatureProjector& projector) { return projector.name == name; });
  return found == arch.projectors.end() ? -1 : found - arch.projectors.begin();
}

int64_t add_projectors(ArchSpec& arch, const std::vector<FeatureProjector>& projectors) {
  if (!projectors.empty() && arch.per_layer_size > 0)
    throw ConfigError("models with inputs for each layer do not take features", "model.projectors",
                      "remove model.projectors, or use another model");
  int64_t num_new = 0;
  for (FeatureProjector projector : projectors) {
    if (projector.hidden == 0) projector.hidden = arch.hidden_size;
    const int64_t known = projector_named(arch, projector.name);
    if (known < 0) {
      arch.projectors.push_back(std::move(projector));
      ++num_new;
      continue;
    }
    const FeatureProjector& own = arch.projectors[static_cast<size_t>(known)];
    if (own == projector) continue;
    throw ConfigError(fmt::format("the projector {} has {}, and the model's files have one with {}",
                                  projector.name, sizes_of(projector), sizes_of(own)),
                      "model.projectors",
                      "remove it, to go on with that of the files, or give it another name");
  }
  return num_new;
}

int64_t add_projectors_of_run(ArchSpec& arch, const std::vector<FeatureProjector>& of_start,
                              const std::vector<FeatureProjector>& own) {
  add_projectors(arch, of_start);
  return add_projectors(arch, own);
}

}  // namespace sftrun::spec
