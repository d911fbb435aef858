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
  require_targets_exist({.target_modules = {"all-linear"}}, arch);
  require_targets_exist({.target_modules = {"q_proj", "layers.1.mlp.down_proj"}}, arch);
  require_targets_exist({.target_pattern = target_pattern("no such pattern")}, arch);
  test::expect_error<ConfigError>(
      [&] { require_targets_exist({.target_modules = {"qproj"}}, arch); },
      {"no linear layer is named `qproj`", "tuning.lora.target_modules",
       "did you mean `q_proj`? available: "});
  test::expect_error<ConfigError>(
      [&] {
        require_targets_exist(
            {.target_modules = {"q_proj"}, .target_parameters = {"experts.down_proj"}}, arch);
      },
      {"no parameter of the experts is named `experts.down_proj`", "the model has no experts"});
}

TEST(TrainedNames, EndsAreAskedForByName) {
  ArchSpec arch = small();
  EXPECT_FALSE(is_end_target({.target_modules = {"all-linear"}}, "lm_head"));
  EXPECT_TRUE(is_end_target({.target_modules = {"all-linear", "lm_head"}}, "lm_head"));
  EXPECT_TRUE(is_end_target({.target_modules = {"embed_tokens"}}, "model.embed_tokens"));
  EXPECT_FALSE(is_end_target({.target_modules = {"embed_tokens"}}, "model.embed_tokens_per_layer"));
  EXPECT_FALSE(
      is_end_target({.target_modules = {"lm_head"}, .modules_to_save = {"lm_head"}}, "lm_head"));
  EXPECT_TRUE(is_end_target({.target_pattern = target_pattern(".*(q_proj|lm_head)")}, "lm_head"));
  LoraSpec both{.r = 8, .target_modules = {"embed_tokens", "lm_head"}};
  require_targets_exist(both, arch);
  EXPECT_EQ(adapted_names(both, arch), std::set<std::string>({"model.embed_tokens", "lm_head"}));
  EXPECT_EQ(num_lora_values(both, arch), 2 * 8 * (100 + 16));
  both.dora = true;
  EXPECT_EQ(num_lora_values(both, arch), 2 * 8 * (100 + 16) + 16 + 100);
  both.dora = false;
  both.rank_pattern = {{"lm_head", 2}};
  require_patterns_match(both, arch);
  EXPECT_EQ(num_lora_values(both, arch), (8 + 2) * (100 + 16));
  test::expect_error<ConfigError>(
      [&] { require_targets_exist({.target_modules = {"lmhead"}}, arch); },
      {"no linear layer is named `lmhead`", "did you mean `lm_head`?"});
}

TEST(TrainedNames, PissaOfEnds) {
  ArchSpec arch = small();
  require_pissa_fits({.target_modules = {"all-linear", "lm_head"}}, arch);
  test::expect_error<ConfigError>(
      [&] { require_pissa_fits({.target_modules = {"embed_tokens"}}, arch); },
      {"PiSSA does not support model.embed_tokens", "tuning.lora.init"});
  arch.tie_word_embeddings = true;
  test::expect_error<ConfigError>(
      [&] { require_pissa_fits({.target_modules = {"lm_head"}}, arch); },
      {"lm_head, which is tied to the embedding"});
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
        require_targets_exist({.target_modules = {"q_proj"},
                               .target_parameters = {"experts.w1", "mlp.gate.weight", "w2"}},
                              with_experts());
      },
      {"no parameter of the experts is named `experts.w1` or `w2`", "mlp.experts.gate_up_proj"});
  test::expect_error<ConfigError>(
      [&] {
        require_targets_exist({.target_modules = {"q_proj", "gate"}}, with_experts());
      },
      {"`gate` names the routers",
       "remove gate from tuning.lora.target_modules, and set "
       "tuning.lora.target_parameters: [mlp.gate.weight]"});
}

TEST(TrainedNames, OfWhatIsAdapted) {
  const std::set<std::string> names =
      adapted_names({.target_modules = {"q_proj"},
                     .target_parameters = {"mlp.experts.down_proj", "mlp.gate.weight"}},
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
  EXPECT_EQ(num_lora_values({.r = 8, .target_modules = {"q_proj"}}, small()), 2 * 8 * q);
  EXPECT_EQ(num_lora_values({.r = 8, .target_modules = {"layers.1.self_attn.q_proj"}}, small()),
            8 * q);
  EXPECT_EQ(num_lora_values({.r = 8, .target_modules = {"all-linear"}}, small()),
            2 * 8 * (2 * q + 2 * kv + 3 * mlp));
  LoraSpec lora{.r = 8, .target_modules = {"q_proj", "k_proj"}};
  lora.rank_pattern = {{"layers.1.self_attn.q_proj", 3}, {"q_proj", 5}};
  EXPECT_EQ(num_lora_values(lora, small()), 8 * q + 16 * kv - 8 * q + (5 + 3) * q);
}

// peft.utils.other.get_pattern_key: re.match(rf"(.*\.)?({key})$", name), the first key that does.
TEST(TrainedNames, PatternsOfRanksMatchAsInPeft) {
  const NamePattern pattern = {{"layers.1.self_attn.q_proj", 1},
                               {"^model.layers.2.mlp.up_proj", 2},
                               {"(q|k)_proj", 3},
                               {"experts\\.[0-9]+\\.w1", 4},
                               {".*\\.gate_up_proj", 5}};
  const auto value = [&](const char* name) { return pattern_value(pattern, name).value_or(-1); };
  EXPECT_EQ(value("model.layers.1.self_attn.q_proj"), 1);
  EXPECT_EQ(value("model.layers.11.self_attn.q_proj"), 3);
  EXPECT_EQ(value("model.layers.0.self_attn.k_proj"), 3);
  EXPECT_EQ(value("model.layers.0.self_attn.xk_proj"), -1);
  EXPECT_EQ(value("model.layers.0.self_attn.k_projection"), -1);
  EXPECT_EQ(value("model.layers.2.mlp.up_proj"), 2);
  EXPECT_EQ(value("x.model.layers.2.mlp.up_proj"), -1);
  EXPECT_EQ(value("model.layers.0.block_sparse_moe.experts.12.w1"), 4);
  EXPECT_EQ(value("model.layers.0.mlp.experts.gate_up_proj"), 5);
  EXPECT_EQ(value("gate_up_proj"), -1);
}

TEST(TrainedNames, ExpressionsThatTakeTooLongAreRefused) {
  const std::string slow = "(?:[a-z_.]|[a-z_.]|[a-z_.])*\\d\\d\\d", place = "tuning.trainable";
  test::expect_error<ConfigError>([&] { TrainableNames({slow}, tensor_specs(small())); },
                                  {"matching `" + slow + "` against model.", "takes too long"});
  test::expect_error<ConfigError>(
      [&] {
        pattern_value({{slow.c_str(), 1}}, "model.layers.0.self_attn.q_proj");
      },
      {"takes too long"});
  const std::string deep = std::string(20'000, '(') + std::string(20'000, ')');
  test::expect_error<ConfigError>([&] { TrainableNames({deep}, tensor_specs(small())); },
                                  {"is not a regular expression", "at   " + place});
  test::expect_error<ConfigError>([&] { target_pattern(deep); }, {"not a regular expression"});
  EXPECT_THROW(NameEnding("a)|(b"), ConfigError);
}

TEST(TrainedNames, ScalesOfUpdates) {
  LoraSpec lora{.r = 4, .alpha = 8};
  lora.rank_pattern = {{"k_proj", 16}};
  lora.alpha_pattern = {{"v_proj", 2}};
  EXPECT_EQ(lora.scale_of("m.q_proj"), 2);
  EXPECT_EQ(lora.scale_of("m.k_proj"), 0.5);
  EXPECT_EQ(lora.scale_of("m.v_proj"), 0.5);
  EXPECT_EQ(lora.alpha_for("m.k_proj", 32), 16);
  lora.rslora = true;
  EXPECT_EQ(lora.scale_of("m.k_proj"), 2);
  EXPECT_EQ(lora.alpha_for("m.k_proj", 64), 16);
}

TEST(TrainedNames, PatternsMustBeOfUpdates) {
  LoraSpec lora{.target_modules = {"q_proj"}};
  lora.rank_pattern = {{"q_proj", 4}, {"layers.7.self_attn.q_proj", 8}};
  test::expect_error<ConfigError>([&] { require_patterns_match(lora, small()); },
                                  {"`layers.7.self_attn.q_proj` matches no adapter",
                                   "tuning.lora.rank_pattern", "model.layers.0.self_attn.q_proj"});
  lora.rank_pattern.pop_back();
  lora.alpha_pattern = {{"k_proj", 4}};
  test::expect_error<ConfigError>([&] { require_patterns_match(lora, small()); },
                                  {"`k_proj`", "tuning.lora.alpha_pattern"});
  lora.target_modules = {"all-linear"};
  require_patterns_match(lora, small());
}

TEST(TrainedNames, PatternsOfParameters) {
  const std::vector<TensorSpec> tensors = tensor_specs(small());
  const TrainableNames names({"layers\\.1\\.", "norm"}, tensors);
  EXPECT_TRUE(names.match("model.layers.1.mlp.up_proj.weight"));
  EXPECT_TRUE(names.match("model.norm.weight"));
  EXPECT_FALSE(names.match("model.embed_tokens.weight"));
  test::expect_error<ConfigError>([&] { TrainableNames({"nothing"}, tensors); },
                                  {"tuning.trainable matches no parameter", "model.norm.weight"});
  test::expect_error<ConfigError>(
      [&] {
        TrainableNames({"norm", "nothing"}, tensors);
      },
      {"tuning.trainable: nothing"});
  test::expect_error<ConfigError>([&] { TrainableNames({"("}, tensors); },
                                  {"is not a regular expression"});
}

}  // namespace
}  // namespace sftrun::spec
