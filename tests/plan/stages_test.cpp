#include "sftrun/plan/stages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/refusals.h"
#include "support/expect_error.h"

namespace sftrun::plan {
namespace {

/// Llama 3 8B's shape.
spec::ArchSpec eight_billion() {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 128256, arch.hidden_size = 4096, arch.intermediate_size = 14336,
  arch.num_layers = 32;
  arch.layers.resize(32);
  arch.num_heads = 32, arch.num_kv_heads = 8, arch.head_dim = 128;
  return arch;
}

config::RunConfig pipeline(int64_t stages) {
  config::RunConfig config;
  config.parallel.strategy = config::Strategy::kPipeline;
  config.parallel.pp = stages;
  config::resolve_axes(config.parallel, static_cast<int>(stages), static_cast<int>(stages));
  return config;
}

TEST(Stages, AreBalancedByCost) {
  using Firsts = std::vector<int64_t>;
  EXPECT_EQ(balanced_stages({0, 1, 1, 1, 1, 0}, 2), (Firsts{0, 3, 6}));
  EXPECT_EQ(balanced_stages({0, 1, 1, 1, 1, 2}, 2), (Firsts{0, 4, 6}));
  EXPECT_EQ(balanced_stages({0, 1, 1, 1, 1, 2}, 3), (Firsts{0, 3, 5, 6}));
  EXPECT_EQ(balanced_stages({0, 1, 1, 9}, 2), (Firsts{0, 3, 4}));
  EXPECT_EQ(balanced_stages({1, 2, 3}, 1), (Firsts{0, 3}));
  EXPECT_EQ(balanced_stages({1, 2, 3}, 3), (Firsts{0, 1, 2, 3}));
}

/// Against all divisions of small lists.
TEST(Stages, NoDivisionHasACheaperLargestStage) {
  const std::vector<double> costs = {0, 3, 1, 4, 1, 5, 9, 2, 6};
  const auto units = static_cast<int64_t>(costs.size());
  const auto cost = [&](int64_t begin, int64_t end) {
    return std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0);
  };
  double best = 1e9;
  for (int64_t a = 1; a < units; ++a)
    for (int64_t b = a + 1; b < units; ++b)
      best = std::min(best, std::max({cost(0, a), cost(a, b), cost(b, units)}));
  const std::vector<int64_t> firsts = balanced_stages(costs, 3);
  double largest = 0;
  for (size_t i = 0; i + 1 < firsts.size(); ++i)
    largest = std::max(largest, cost(firsts[i], firsts[i + 1]));
  EXPECT_EQ(largest, best);
}

/// The head costs as much as two layers and a half, so the last stage has fewer of them.
TEST(Stages, TheHeadCountsAsWork) {
  const std::vector<double> costs = unit_costs(eight_billion(), 2048);
  EXPECT_EQ(costs.size(), 34U);
  EXPECT_EQ(costs.front(), 0);
  EXPECT_EQ(costs[1], 4096.0 * (4096 + 1024) * 2 + 3 * 4096.0 * 14336 + 2048.0 * 4096);
  EXPECT_EQ(costs.back(), 128256.0 * 4096);
  EXPECT_EQ(stages_of(eight_billion(), pipeline(2)), (std::vector<int64_t>{0, 18, 34}));
  EXPECT_EQ(stages_of(eight_billion(), pipeline(4)), (std::vector<int64_t>{0, 9, 18, 27, 34}));
}

TEST(Stages, ShareTheMemory) {
  const std::vector<double> shares = activation_shares(eight_billion(), pipeline(2));
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_NEAR(shares[0], 2 * 17 / 32.0, 1e-12);  // two micro-batches are under way
  EXPECT_NEAR(shares[1], 15 / 32.0, 1e-12);
  const auto stages = [](const spec::ArchSpec& arch, const config::RunConfig& config) {
    const std::vector<double> units = unit_bytes(arch, config, /*element_bytes=*/2);
    return std::pair(std::accumulate(units.begin(), units.begin() + 18, 0.0),
                     std::accumulate(units.begin() + 18, units.end(), 0.0));
  };
  config::RunConfig one = pipeline(2);
  one.parallel = {.strategy = config::Strategy::kDdp};
  const auto [first, second] = stages(eight_billion(), one);
  EXPECT_NEAR(static_cast<double>(static_bytes(eight_billion(), one, 2)), first + second, 64);
  EXPECT_NEAR(static_cast<double>(static_bytes(eight_billion(), pipeline(2), 2)),
              std::max(first, second), 64);
  spec::ArchSpec tied = eight_billion();
  tied.tie_word_embeddings = true;
  const auto [with_embedding, with_head] = stages(tied, one);  // both have the embedding
  EXPECT_NEAR(with_embedding + with_head - static_cast<double>(static_bytes(tied, one, 2)),
              128256.0 * 4096 * 2, 64);
  EXPECT_NEAR(static_cast<double>(static_bytes(tied, pipeline(2), 2)),
              std::max(with_embedding, with_head), 64);
}

TEST(Stages, AreDescribed) {
  EXPECT_EQ(describe_stages(eight_billion(), pipeline(2)),
            "pipeline of 2 stages: embedding, layers 0 to 16; layers 17 to 31, head");
  EXPECT_NE(describe_stages(eight_billion(), pipeline(34)).find("embedding; layer 0; layer 1;"),
            std::string::npos);
}

TEST(Stages, ThatWaitMuchGiveAWarning) {
  config::RunConfig config = pipeline(4);
  config.train.grad_accum.value = 4;
  const std::string waits = waiting_stages_warning(config).value();
  EXPECT_NE(waits.find("grad_accum 4 each of the 4 stages waits for the others 43%"),
            std::string::npos)
      << waits;
  EXPECT_NE(waits.find("with 16 it is 16%"), std::string::npos) << waits;
  config.train.grad_accum.value = 9;
  EXPECT_FALSE(waiting_stages_warning(config));
  config.train.grad_accum.value = 1;
  config.parallel = {.strategy = config::Strategy::kFsdp};
  EXPECT_FALSE(waiting_stages_warning(config));
}

TEST(Stages, RefusesWhatCannotBeDivided) {
  test::expect_error<ConfigError>(
      [&] { require_stages(eight_billion(), pipeline(35), "run.yaml:7"); },
      {"32 layers", "35 stages", "run.yaml:7", "at most 34"});
  const auto place = [](const config::Divisions&) { return "run.yaml:7"; };
  const auto refuses = [&](const spec::ArchSpec& arch, const config::RunConfig& config,
                           std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { require_model(arch, config, place); }, parts);
  };
  EXPECT_NO_THROW(require_stages(eight_billion(), pipeline(34), ""));
  spec::ArchSpec shares = eight_billion();
  shares.layers[20].keys_of = 12;
  refuses(shares, pipeline(2), {"share keys", "run.yaml:7", "fsdp"});
  EXPECT_NO_THROW(require_model(shares, pipeline(1), place));
  spec::ArchSpec inputs = eight_billion();
  inputs.per_layer_size = 64;
  refuses(inputs, pipeline(2), {"per-layer inputs"});
  spec::ArchSpec mixture = eight_billion();
  mixture.mixture.num_experts = 8, mixture.mixture.top_k = 2;
  mixture.mixture.aux_loss_coef = 0.01;
  refuses(mixture, pipeline(2), {"load-balancing", "router_aux_loss_coef: 0"});
  config::RunConfig off = pipeline(2);
  off.train.router_aux_loss_coef = 0;
  EXPECT_NO_THROW(require_model(mixture, off, place));
  spec::ArchSpec norms = eight_billion();
  norms.qk_norm = spec::QkNorm::kWhole;
  config::RunConfig matrices;
  matrices.parallel.axes.tp = 2;
  refuses(norms, matrices, {"normalises queries over all heads together", "run.yaml:7"});
  EXPECT_NO_THROW(require_model(norms, pipeline(2), place));
  test::expect_error<ConfigError>([&] { require_parts(eight_billion(), 3, "run.yaml:7"); },
                                  {"cannot be divided by 3"});
}

}  // namespace
}  // namespace sftrun::plan
