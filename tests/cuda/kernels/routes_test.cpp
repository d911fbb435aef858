#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "experts/routes_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Case {
  int64_t tokens, experts, top_k;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.tokens << " tokens, " << c.top_k << " of " << c.experts << " experts";
}
/// Experts and choices of less than a warp, of one, and of one more.
constexpr Case kCases[] = {{0, 4, 2},   {1, 1, 1},    {3, 5, 2},    {9, 32, 8}, {17, 33, 33},
                           {8, 64, 32}, {5, 128, 64}, {3, 300, 40}, {33, 7, 3}};

size_t place(int64_t i) {
  return static_cast<size_t>(i);
}

/// Few different values, so that choices are among equals; NaN, infinities, both zeros.
std::vector<float> logits_with_ties(const Case& c, uint64_t seed) {
  std::vector<float> logits = normal(c.tokens * c.experts, seed, 2);
  for (float& value : logits) value = std::round(value);
  const float odd[] = {0.0F, -0.0F, -std::numeric_limits<float>::infinity()};
  for (size_t i = 0; i < logits.size(); i += 5) logits[i] = odd[i / 5 % 3];
  return logits;
}

/// The experts of a token, the largest logit first, NaN before all, of equal ones the lower.
std::vector<int32_t> expected_choice(const float* logits, const Case& c) {
  std::vector<int32_t> order(place(c.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(logits[a]) || std::isnan(logits[b]))
      return std::isnan(logits[a]) && !std::isnan(logits[b]);
    return logits[a] > logits[b];
  });
  order.resize(place(c.top_k));
  return order;
}

RouterChoice choice_of(const Case& c, bool normalise, const std::vector<Memory>& made,
                       bool has_factors) {
  return {.tokens = c.tokens,
          .experts = c.experts,
          .top_k = c.top_k,
          .normalise = normalise,
          .chosen = made[0].as<int32_t>(),
          .weights = made[1].as<float>(),
          .scaled = made[has_factors ? 2 : 1].as<float>()};
}
std::vector<Memory> route(const Case& c, bool normalise, const Memory& logits,
                          const Memory* factors) {
  return in_every_order([&] {
    std::vector<Memory> made{Memory::untouched<int32_t>(c.tokens * c.top_k),
                             Memory::untouched<float>(c.tokens * c.top_k),
                             Memory::untouched<float>(c.tokens * c.top_k)};
    launch_route_tokens(choice_of(c, normalise, made, factors != nullptr), logits.as<float>(),
                        factors == nullptr ? nullptr : factors->as<float>(), nullptr);
    return made;
  });
}

/// A token's softmax over all experts, each with the size of its error.
std::vector<Exact> softmax(const float* logits, const Case& c) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t e = 0; e < c.experts; ++e) largest = std::max<double>(largest, logits[e]);
  std::vector<Exact> p;
  for (int64_t e = 0; e < c.experts; ++e) {
    const double distance = logits[e] - largest, term = std::exp(distance);
    p.push_back({term, term == 0 ? 0 : term * (1 - distance)});
    sum += term;
  }
  for (Exact& each : p) each.value /= sum, each.size /= sum;
  return p;
}
/// Sums over the choices one by one, over all experts by lanes, terms, a quotient.
double roundings(const Case& c) {
  return 12 + static_cast<double>(c.top_k) + static_cast<double>(c.experts) / 32;
}

/// Of a token: weights, which add up to 1 or are probabilities.
std::vector<Exact> weights_of(const std::vector<Exact>& p, const int32_t* chosen, const Case& c,
                              bool normalise) {
  double sum = 0;
  for (int64_t k = 0; k < c.top_k; ++k) sum += p[place(chosen[k])].value;
  std::vector<Exact> weights;
  for (int64_t k = 0; k < c.top_k; ++k) {
    const Exact& one = p[place(chosen[k])];
    weights.push_back(normalise ? Exact{one.value / sum, one.size / sum} : one);
  }
  return weights;
}

void expect_choice(const Case& c, bool normalise, bool has_factors) {
  const std::vector<float> logits = logits_with_ties(c, 1), factors = normal(c.experts, 2);
  const Memory of_logits = Memory::raw(logits), of_factors = Memory::raw(factors);
  const auto made = route(c, normalise, of_logits, has_factors ? &of_factors : nullptr);
  std::vector<int32_t> chosen;
  std::vector<Exact> weights, scaled;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const float* own = logits.data() + t * c.experts;
    const auto expected = expected_choice(own, c);
    chosen.insert(chosen.end(), expected.begin(), expected.end());
    const auto of_token = weights_of(softmax(own, c), expected.data(), c, normalise);
    for (size_t k = 0; k < of_token.size(); ++k) {
      const double factor = factors[place(expected[k])];
      weights.push_back(of_token[k]);
      scaled.push_back({of_token[k].value * factor, of_token[k].size * std::fabs(factor)});
    }
  }
  EXPECT_EQ(made[0].to<int32_t>(), chosen);
  EXPECT_TRUE(close(Type::kFloat32, made[1], weights, roundings(c)));
  if (!has_factors) return;
  EXPECT_TRUE(close(Type::kFloat32, made[2], scaled, roundings(c) + 1));
}

TEST(CudaRoutes, ChoicesAndTheirWeights) {
  for_each("case", kCases, [](const Case& c) {
    expect_choice(c, true, false);
    expect_choice(c, false, true);
  });
}

/// All choices are experts, whatever the logits; a token beside one with NaN is as it was.
TEST(CudaRoutes, NanIsChosenFirst) {
  const Case c{3, 6, 4};
  std::vector<float> logits = logits_with_ties(c, 3);
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const int64_t e : {2, 4}) logits[place(c.experts + e)] = nan;
  for (int64_t e = 0; e < c.experts; ++e) logits[place(e)] = -infinity;
  logits[place(c.experts)] = -nan;
  const auto made = route(c, true, Memory::raw(logits), nullptr);
  std::vector<int32_t> chosen;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto expected = expected_choice(logits.data() + t * c.experts, c);
    chosen.insert(chosen.end(), expected.begin(), expected.end());
  }
  EXPECT_EQ(made[0].to<int32_t>(), chosen);
  const auto weights = made[1].to<float>();
  for (int64_t k = 0; k < c.top_k; ++k) {
    EXPECT_TRUE(std::isnan(weights[place(k)]));
    EXPECT_TRUE(std::isnan(weights[place(c.top_k + k)]));
    EXPECT_FALSE(std::isnan(weights[place(2 * c.top_k + k)]));
  }
}

/// Through the quotient of the weights' sum, then through the softmax over all experts.
struct Gradients {
  std::vector<float> logits, factors, d_scaled, d_probability;
  bool normalise = true;
  float scale = 1;
};
std::vector<Exact> expected_gradients(const Case& c, const Gradients& g) {
  std::vector<Exact> out;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const float* own = g.logits.data() + t * c.experts;
    const auto p = softmax(own, c);
    const auto chosen = expected_choice(own, c);
    const auto weights = weights_of(p, chosen.data(), c, g.normalise);
    std::vector<Exact> d(place(c.experts), {0, 0});
    for (size_t e = 0; e < d.size() && !g.d_probability.empty(); ++e)
      d[e] = {g.d_probability[e], std::fabs(g.d_probability[e])};
    double sum = 0, along = 0, along_size = 0;
    std::vector<double> d_weights;
    for (size_t k = 0; k < chosen.size(); ++k) {
      double grad = g.d_scaled[place(t * c.top_k) + k];
      if (!g.factors.empty()) grad *= g.factors[place(chosen[k])];
      d_weights.push_back(grad);
      sum += p[place(chosen[k])].value;
      along += weights[k].value * grad, along_size += weights[k].size * std::fabs(grad);
    }
    for (size_t k = 0; k < chosen.size(); ++k) {
      Exact& into = d[place(chosen[k])];
      const double grad = d_weights[k];
      into.value += g.normalise ? (grad - along) / sum : grad;
      into.size += g.normalise ? (std::fabs(grad) + along_size) / sum : std::fabs(grad);
    }
    double mean = 0, mean_size = 0;
    for (size_t e = 0; e < d.size(); ++e)
      mean += p[e].value * d[e].value, mean_size += p[e].size * d[e].size;
    for (size_t e = 0; e < d.size(); ++e)
      out.push_back({g.scale * p[e].value * (d[e].value - mean),
                     std::fabs(g.scale) * p[e].size * (d[e].size + mean_size)});
  }
  return out;
}

void expect_gradients(const Case& c, bool normalise, bool has_factors, bool is_balanced) {
  Gradients g{logits_with_ties(c, 4), {}, normal(c.tokens * c.top_k, 5), {}, normalise, 0.5F};
  if (has_factors) g.factors = normal(c.experts, 6);
  if (is_balanced) g.d_probability = normal(c.experts, 7);
  const Memory logits = Memory::raw(g.logits), factors = Memory::raw(g.factors),
               d_scaled = Memory::raw(g.d_scaled), d_probability = Memory::raw(g.d_probability);
  const auto routed = route(c, normalise, logits, has_factors ? &factors : nullptr);
  const auto made = in_every_order([&] {
    std::vector<Memory> d_logits{Memory::untouched<float>(c.tokens * c.experts)};
    launch_route_tokens_backward(
        choice_of(c, normalise, routed, has_factors),
        {.logits = logits.as<float>(),
         .factors = has_factors ? factors.as<float>() : nullptr,
         .d_scaled = d_scaled.as<float>(),
         .d_probability = is_balanced ? d_probability.as<float>() : nullptr,
         .d_logits = d_logits[0].as<float>(),
         .scale = g.scale},
        nullptr);
    return d_logits;
  });
  EXPECT_TRUE(close(Type::kFloat32, made[0], expected_gradients(c, g), 3 * roundings(c)));
}

TEST(CudaRoutes, GradientsOfLogits) {
  for_each("case", kCases, [](const Case& c) {
    for (const bool normalise : {true, false}) {
      expect_gradients(c, normalise, false, false);
      expect_gradients(c, normalise, false, true);
      expect_gradients(c, normalise, true, true);
    }
  });
}

/// Fewer routes than threads, some turns of a warp, parts of one; whole fours and not.
constexpr int64_t kRoutes[] = {0,   1,    3,    4,    31,   32,   33,   127,  128,
                               129, 1023, 1024, 1025, 1028, 2047, 4096, 4099, 9000};

void expect_sorted(const std::vector<int32_t>& chosen, int64_t experts, int64_t shift) {
  const auto routes = static_cast<int64_t>(chosen.size());
  const Memory of_chosen = Memory::raw(chosen, shift);
  const auto made = in_every_order([&] {
    std::vector<Memory> all{Memory::untouched<int32_t>(experts), Memory::untouched<int32_t>(routes),
                            Memory::untouched<int32_t>(routes), Memory::untouched<int32_t>(routes)};
    launch_sort_routes({.routes = routes,
                        .num_experts = experts,
                        .ends = all[0].as<int32_t>(),
                        .slots = all[1].as<int32_t>(),
                        .experts = all[2].as<int32_t>(),
                        .rows = all[3].as<int32_t>()},
                       of_chosen.as<int32_t>(), nullptr);
    return all;
  });
  std::vector<int32_t> slots(chosen.size()), ends(place(experts)), sorted = chosen,
                                                                   rows(chosen.size());
  std::iota(slots.begin(), slots.end(), 0);
  std::stable_sort(slots.begin(), slots.end(),
                   [&](int32_t a, int32_t b) { return chosen[place(a)] < chosen[place(b)]; });
  std::sort(sorted.begin(), sorted.end());
  for (size_t row = 0; row < slots.size(); ++row)
    rows[place(slots[row])] = static_cast<int32_t>(row);
  for (int64_t e = 0; e < experts; ++e)
    ends[place(e)] = static_cast<int32_t>(
        std::upper_bound(sorted.begin(), sorted.end(), static_cast<int32_t>(e)) - sorted.begin());
  EXPECT_EQ(made[0].to<int32_t>(), ends);
  EXPECT_EQ(made[1].to<int32_t>(), slots);
  EXPECT_EQ(made[2].to<int32_t>(), sorted);
  EXPECT_EQ(made[3].to<int32_t>(), rows);
}

TEST(CudaRoutes, SortedByExpert) {
  for_each("routes", kRoutes, [](int64_t routes) {
    for (const int64_t experts : {1, 2, 5, 33}) {
      std::mt19937 random(static_cast<uint32_t>(routes));
      std::vector<int32_t> chosen(place(routes));
      for (int32_t& expert : chosen)
        expert = static_cast<int32_t>(random() % static_cast<uint32_t>(experts));
      expect_sorted(chosen, experts, 0);
      if (experts == 5) expect_sorted(chosen, experts, 1);
    }
  });
}
/// Experts without routes before, between and behind the one that has all.
TEST(CudaRoutes, AllToOneExpert) {
  for (const int32_t expert : {0, 1, 2}) expect_sorted(std::vector<int32_t>(1500, expert), 3, 0);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
