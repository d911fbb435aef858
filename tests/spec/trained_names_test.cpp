#include "sftrun/spec/trained_names.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace sftrun::spec {
namespace {

ArchSpec small() {
  ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 100, arch.hidden_size = 16, arch.intermediate_size = 32, arch.num_layers = 2;
  arch.layers.resize(2);
  arch.num_heads = 4, arch.num_kv_heads = 2, arch.head_dim = 4;
  return arch;
}

TEST(TrainedNames, TargetsThatAreNotThereAreRefused) {
  const ArchSpec arch = small();
  require_targets_exist({.modules = {"all-linear"}}, arch);
  require_targets_exist({.modules = {"q_proj", "layers.1.mlp.down_proj"}}, arch);
  require_targets_exist({.modules = {"no such pattern"}, .is_pattern = true}, arch);
  test::expect_error<ConfigError>([&] { require_targets_exist({.modules = {"qproj"}}, arch); },
                                  {"no linear layer is named `qproj`", "tuning.lora.target_modules",
                                   "did you mean `q_proj`? there are: "});
  test::expect_error<ConfigError>(
      [&] {
        require_targets_exist({.modules = {"q_proj"}, .parameters = {"experts.down_proj"}}, arch);
      },
      {"no experts' parameter is named `experts.down_proj`", "the model has no experts"});
}

ArchSpec with_experts() {
  ArchSpec arch = small();
  arch.family = "qwen3_moe";
  arch.mixture.num_experts = 4, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 8;
  arch.layers.at(1).sparse = true;
  return arch;
}

TEST(TrainedNames, OfExpertsAllWrongNamesAreTold) {
  test::expect_error<ConfigError>(
      [&] {
        require_targets_exist(
            {.modules = {"q_proj"}, .parameters = {"experts.w1", "mlp.gate.weight", "w2"}},
            with_experts());
      },
      {"no experts' parameter is named `experts.w1` or `w2`", "mlp.experts.gate_up_proj"});
  test::expect_error<ConfigError>(
      [&] {
        require_targets_exist({.modules = {"q_proj", "gate"}}, with_experts());
      },
      {"`gate` names the routers", "set tuning.lora.target_parameters: [mlp.gate.weight]"});
}

TEST(TrainedNames, OfWhatIsAdapted) {
  const std::set<std::string> names = adapted_names(
      {.modules = {"q_proj"}, .parameters = {"mlp.experts.down_proj", "mlp.gate.weight"}},
      with_experts());
  EXPECT_EQ(names, std::set<std::string>(
                       {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                        "model.layers.1.mlp.gate", "model.layers.1.mlp.experts.down_proj"}));
}

TEST(TrainedNames, BalanceOfLoadsAsTheRunOrTheModelAsks) {
  MixtureSpec mixture;
  EXPECT_EQ(aux_loss_coef(std::nullopt, mixture), std::nullopt);
  EXPECT_EQ(aux_loss_coef(0, mixture), 0);
  test::expect_error<ConfigError>([&] { aux_loss_coef(0.1, mixture); },
                                  {"no experts", "train.router_aux_loss_coef"});
  mixture.num_experts = 4;
  mixture.aux_loss_coef = 0.02;
  EXPECT_EQ(aux_loss_coef(std::nullopt, mixture), 0.02);
  EXPECT_EQ(aux_loss_coef(0, mixture), 0);
  EXPECT_EQ(aux_loss_coef(0.1, mixture), 0.1);
  mixture.has_aux_loss = false;
  test::expect_error<ConfigError>([&] { aux_loss_coef(0.1, mixture); }, {"of this family"});
}

TEST(TrainedNames, ValuesOfUpdatesAreCounted) {
  const int64_t q = 16 + 16, kv = 16 + 8, mlp = 16 + 32;
  EXPECT_EQ(num_lora_values({.modules = {"q_proj"}}, 8, small()), 2 * 8 * q);
  EXPECT_EQ(num_lora_values({.modules = {"layers.1.self_attn.q_proj"}}, 8, small()), 8 * q);
  EXPECT_EQ(num_lora_values({.modules = {"all-linear"}}, 8, small()),
            2 * 8 * (2 * q + 2 * kv + 3 * mlp));
}

TEST(TrainedNames, PatternsOfParameters) {
  const std::vector<TensorSpec> tensors = tensor_specs(small());
  const TrainableNames names({"layers\\.1\\.", "norm"}, tensors);
  EXPECT_TRUE(names.match("model.layers.1.mlp.up_proj.weight"));
  EXPECT_TRUE(names.match("model.norm.weight"));
  EXPECT_FALSE(names.match("model.embed_tokens.weight"));
  test::expect_error<ConfigError>([&] { TrainableNames({"nothing"}, tensors); },
                                  {"tuning.trainable matches no parameter", "model.norm.weight"});
  test::expect_error<ConfigError>([&] { TrainableNames({"("}, tensors); },
                                  {"is not a regular expression"});
}

}  // namespace
}  // namespace sftrun::spec
