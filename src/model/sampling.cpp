#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sftrun/core/rng.h"

namespace sftrun::model {
namespace {

void cut_to_top_p(Candidates& candidates, double top_p) {
  double reached = 0;
  size_t count = 0;
  while (count < candidates.weights.size() && (count == 0 || reached < top_p * candidates.total))
    reached += candidates.weights[count++];
  candidates.tokens.resize(count);
  candidates.weights.resize(count);
  candidates.total = reached;
}

/// Weights are relative to the largest, which is 1.
void cut_to_min_p(Candidates& candidates, double min_p) {
  Candidates kept;
  for (size_t i = 0; i < candidates.tokens.size(); ++i) {
    if (candidates.weights[i] < min_p) continue;
    kept.tokens.push_back(candidates.tokens[i]);
    kept.weights.push_back(candidates.weights[i]);
    kept.total += candidates.weights[i];
  }
  candidates = std::move(kept);
}

/// Uniform in [0, 1), 53 bits. For draw 0 the first number of RandomStream(seed, stream << 32 |
/// position): answers of before draws were counted stay what they were.
double unit_at(uint64_t seed, const DrawPlace& place) {
  const Philox4 block = philox4x32(
      {0, place.draw, static_cast<uint32_t>(place.position), static_cast<uint32_t>(place.stream)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{block[0]} << 32 | block[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace

void penalize_repetition(std::span<float> logits, std::span<const int32_t> prompt,
                         std::span<const int32_t> generated, double penalty) {
  std::vector<bool> penalized(logits.size());
  const auto factor = static_cast<float>(penalty);
  for (const std::span<const int32_t> tokens : {prompt, generated}) {
    for (const int32_t token : tokens) {
      const auto index = static_cast<size_t>(token);
      if (index >= logits.size() || penalized[index]) continue;
      penalized[index] = true;
      float& logit = logits[index];
      logit = logit < 0 ? logit * factor : logit / factor;
    }
  }
}

Candidates candidates(std::span<const float> logits, const SamplingOptions& options) {
  const auto vocab = static_cast<int64_t>(logits.size());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const int64_t kept = options.top_k ? std::clamp<int64_t>(*options.top_k, 1, vocab) : vocab;
  const auto logit_of = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto larger = [&](int32_t a, int32_t b) {
    return logit_of(a) > logit_of(b) || (logit_of(a) == logit_of(b) && a < b);
  };
  const bool sorts = options.top_p < 1 || kept < vocab;
  if (sorts) std::partial_sort(order.begin(), order.begin() + kept, order.end(), larger);
  order.resize(static_cast<size_t>(kept));
  const double top = *std::max_element(logits.begin(), logits.end());
  Candidates result;
  result.weights.reserve(order.size());
  for (const int32_t token : order) {
    const double logit = logit_of(token);
    result.weights.push_back(std::exp((logit - top) / options.temperature));
    result.total += result.weights.back();
  }
  result.tokens = std::move(order);
  if (options.top_p < 1) cut_to_top_p(result, options.top_p);
  if (options.min_p > 0) cut_to_min_p(result, options.min_p);
  return result;
}

DrawnToken sample_token(std::span<const float> logits, const SamplingOptions& options,
                        const DrawPlace& place) {
  if (options.temperature <= 0) {
    const auto largest = std::max_element(logits.begin(), logits.end());
    return {static_cast<int32_t>(largest - logits.begin()), 0};
  }
  const Candidates drawn_from = candidates(logits, options);
  double left = unit_at(options.seed, place) * drawn_from.total;
  size_t drawn = 0;
  for (; drawn + 1 < drawn_from.tokens.size(); ++drawn) {
    left -= drawn_from.weights[drawn];
    if (left < 0) break;
  }
  while (drawn > 0 && drawn_from.weights[drawn] == 0) --drawn;  // rounding has led to the end
  return {drawn_from.tokens[drawn], std::log(drawn_from.weights[drawn] / drawn_from.total)};
}

}  // namespace sftrun::model
