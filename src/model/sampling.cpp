#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sftrun/core/rng.h"

namespace sftrun::model {

int32_t sample_token(const float* logits, int64_t vocab, const SamplingOptions& options,
                     uint64_t stream, uint64_t position) {
  if (options.temperature <= 0)
    return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  int64_t kept = options.top_k ? std::clamp<int64_t>(*options.top_k, 1, vocab) : vocab;
  const auto larger = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const bool sorts = options.top_p < 1 || kept < vocab;
  if (sorts) std::partial_sort(order.begin(), order.begin() + kept, order.end(), larger);
  const double top = sorts ? logits[order[0]] : *std::max_element(logits, logits + vocab);
  std::vector<double> weights(static_cast<size_t>(kept));
  double total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[order[i]]) - top) / options.temperature);
    total += weights[i];
  }
  if (options.top_p < 1) {
    double reached = 0;
    int64_t count = 0;
    while (count < kept && (count == 0 || reached < options.top_p * total))
      reached += weights[static_cast<size_t>(count++)];
    kept = count;
    total = reached;
  }
  RandomStream random(options.seed, stream << 32 | position);
  double left = random.next_unit() * total;
  for (int64_t i = 0; i < kept; ++i) {
    left -= weights[static_cast<size_t>(i)];
    if (left < 0) return order[static_cast<size_t>(i)];
  }
  return order[static_cast<size_t>(kept - 1)];
}

}  // namespace sftrun::model
