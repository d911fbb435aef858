#include "dpo.h"

#include <ATen/ATen.h>

#include "pairs.h"

namespace sftrun::train {

ObjectiveValue dpo(const DocumentSums& sums, const config::TrainConfig& config) {
  return value_of_pairs(sums, {.beta = config.beta}, [](const at::Tensor& margins) {
    return PairLoss{.losses = -at::log_sigmoid(margins), .slopes = -at::sigmoid(-margins)};
  });
}

}  // namespace sftrun::train
