#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "sftrun/core/feature_projector.h"
#include "sftrun/weights/checkpoint.h"

/// Projectors of features that other encoders computed: projectors.json in the folder of a model or an adapter has their sizes, by name:
/// {"world": {"input_width": 1024, "hidden": 2048, "tokens": 64}}. Their tensors are with the folder's others, those of an adapter among
/// PEFT's `modules_to_save`.
namespace sftrun::weights {

inline constexpr const char* kProjectorsFile = "projectors.json";

/// @return none: the folder has no such file
/// @throws DataError for a file of another form, and for an adapter that saves projectors and has no such file
std::vector<FeatureProjector> read_projectors(const std::filesystem::path& folder);
/// Those of an adapter, whose tensors are in the adapter or in its base.   @throws DataError if they are in neither
std::vector<FeatureProjector> read_adapter_projectors(const Checkpoint& base,
                                                      const std::filesystem::path& adapter);
/// Writes nothing if there are none.
void write_projectors(const std::filesystem::path& folder,
                      const std::vector<FeatureProjector>& projectors);

/// The model with these projectors, too. Those that its files do not have begin as PyTorch's nn.Linear does: uniform in
/// ±1 / sqrt(in_features).
/// @return the model itself, if it has them all
/// @throws ConfigError as spec::add_projectors
std::shared_ptr<const Checkpoint> with_projectors(std::shared_ptr<const Checkpoint> model,
                                                  const std::vector<FeatureProjector>& projectors,
                                                  uint64_t seed = 0);

}  // namespace sftrun::weights
