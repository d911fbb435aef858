#include "sftrun/data/small_data.h"

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::data {

EpochSize epoch_size(const config::RunConfig& config, const Dataset& dataset) {
  EpochSize epoch;
  double tokens = 0, examples = 0;
  for (const DatasetPart& part : dataset.parts()) {
    for (int64_t i = part.begin; i < part.end; ++i) {
      const int64_t length = dataset.examples().stored(i).length;
      tokens += part.weight * static_cast<double>(length);
      examples += part.weight;
    }
  }
  epoch.tokens = static_cast<int64_t>(tokens);
  const double bins = config.data.packing
                          ? tokens / static_cast<double>(config.model.max_seq_len)
                          : examples / static_cast<double>(documents_together(config));
  epoch.bins = static_cast<int64_t>(std::ceil(bins));
  return epoch;
}

int64_t target_batch(const EpochSize& epoch) {
  return std::clamp<int64_t>(epoch.bins / kStepsInEpoch, 1, config::kTargetGlobalBatch);
}

int64_t bin_tokens(const EpochSize& epoch, int64_t global_batch_size, int64_t max_seq_len) {
  SFTRUN_CHECK(global_batch_size > 0);
  const int64_t wanted = epoch.tokens / (kStepsInEpoch * global_batch_size);
  return std::clamp(wanted, std::min(kFewestBinTokens, max_seq_len), max_seq_len);
}

}  // namespace sftrun::data
