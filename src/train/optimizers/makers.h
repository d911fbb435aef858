#pragma once

#include <array>
#include <memory>

#include "sftrun/train/optimizer.h"

namespace sftrun::train {

/// Makes an optimizer; arguments as `make_optimizer`.
using OptimizerMaker = std::unique_ptr<Optimizer>(const layers::OwnedValues& values,
                                                  const config::TrainConfig& config);
OptimizerMaker make_adamw, make_adamw_8bit, make_sgd, make_lion, make_adafactor, make_muon;

/// The maker of each row of config::kOptimizers.
inline constexpr auto kOptimizerMakers = std::to_array<OptimizerMaker*>({
    make_adamw,
    make_adamw_8bit,
    make_adamw,       // paged_adamw
    make_adamw_8bit,  // paged_adamw_8bit
    make_sgd,
    make_lion,
    make_adafactor,
    make_muon,
});
static_assert(kOptimizerMakers.size() == config::kOptimizers.size());

}  // namespace sftrun::train
