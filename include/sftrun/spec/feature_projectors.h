#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/feature_projector.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {

/// Adds projectors to those that the model's files have; with the name of one of these it must be the same.
/// @return the number of new ones
/// @throws ConfigError naming model.projectors for another of the same name, and for models with inputs for each layer
int64_t add_projectors(ArchSpec& arch, const std::vector<FeatureProjector>& projectors);

/// Those of a run, in the order that all of it has: of the model's files, of the adapter that it starts from, and its own.
/// @return the number of its own that are new
/// @throws as add_projectors
int64_t add_projectors_of_run(ArchSpec& arch, const std::vector<FeatureProjector>& of_start,
                              const std::vector<FeatureProjector>& own);

/// Whether it is a tensor of one of the model's projectors.
bool is_of_projectors(const ArchSpec& arch, std::string_view tensor);

/// Whether a tensor has the name of one of any model's projectors.
bool is_projector_name(std::string_view tensor);

/// The number of a projector in `ArchSpec::projectors`; -1: there is none of this name.
int64_t projector_named(const ArchSpec& arch, const std::string& name);

}  // namespace sftrun::spec
