#pragma once

#include <array>
#include <cstdint>

#include "sftrun/core/feature_projector.h"

namespace sftrun {

/// A size of a projector, as `model.projectors` and projectors.json name it.
struct ProjectorSize {
  const char* key;
  int64_t FeatureProjector::*member;
};
inline constexpr std::array kProjectorSizes = {
    ProjectorSize{"input_width", &FeatureProjector::input_width},
    ProjectorSize{"hidden", &FeatureProjector::hidden},
    ProjectorSize{"tokens", &FeatureProjector::tokens}};
inline constexpr int64_t kMaxProjectorSize = 1 << 20;

}  // namespace sftrun
