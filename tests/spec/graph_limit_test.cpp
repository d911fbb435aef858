#include "sftrun/spec/graph_limit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sftrun::spec {
namespace {

ArchSpec qwen3(int64_t hidden, int64_t inner, int64_t layers, int64_t heads,
               const nlohmann::json& more = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "qwen3"},           {"vocab_size", 151936},
                           {"hidden_size", hidden},           {"intermediate_size", inner},
                           {"num_hidden_layers", layers},     {"num_attention_heads", heads},
                           {"num_key_value_heads", 8},        {"head_dim", 128},
                           {"max_position_embeddings", 40960}};
  config.update(more);
  return ArchSpec::from_hf_config(config, "config.json");
}

TEST(TokensWorthAGraph, AreFewForLargeModels) {
  EXPECT_EQ(tokens_worth_a_graph(qwen3(1024, 3072, 28, 16), false), 1423);
  EXPECT_EQ(tokens_worth_a_graph(qwen3(4096, 12288, 36, 32), false), 143);
  EXPECT_EQ(tokens_worth_a_graph(qwen3(1024, 3072, 28, 16), true), 1423 * 2 / 3);
}

/// A token is multiplied by the experts that it chooses.
TEST(TokensWorthAGraph, CountChosenExperts) {
  ArchSpec arch = qwen3(1024, 3072, 8, 8,
                        {{"model_type", "qwen3_moe"},
                         {"num_experts", 32},
                         {"num_experts_per_tok", 4},
                         {"moe_intermediate_size", 512},
                         {"norm_topk_prob", true}});
  const int64_t limit = tokens_worth_a_graph(arch, false);
  arch.mixture.num_experts *= 2;
  EXPECT_NEAR(static_cast<double>(tokens_worth_a_graph(arch, false)), static_cast<double>(limit),
              0.02 * static_cast<double>(limit))
      << "only the router grows";
  arch.mixture.top_k *= 2;
  EXPECT_LT(tokens_worth_a_graph(arch, false), limit);
}

}  // namespace
}  // namespace sftrun::spec
