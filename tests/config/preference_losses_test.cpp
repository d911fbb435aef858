#include "sftrun/config/preference_losses.h"

#include <fmt/format.h>

#include <set>

#include "config_test_base.h"
#include "sftrun/config/preference_warnings.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using PreferenceLossesTest = ConfigTest;
using Shares = std::vector<LossShare>;

TEST(PreferenceLosses, RowsAreFoundByTheirNames) {
  std::set<std::string_view> names;
  for (const PreferenceLossInfo& info : kPreferenceLosses) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " is listed twice";
    EXPECT_EQ(find_preference_loss(info.name), &info);
    EXPECT_NE(loss_formulas().find(info.formula), std::string::npos) << info.name;
  }
  EXPECT_EQ(find_preference_loss("nothing"), nullptr);
}

TEST_F(PreferenceLossesTest, ANameAListOrAMap) {
  const auto losses = [&](const std::string& text) {
    return load("train: {objective: dpo, loss_type: " + text + "}\n").config.train.losses().shares;
  };
  using enum PreferenceLoss;
  EXPECT_EQ(losses("HINGE"), (Shares{{kHinge, 1}}));
  EXPECT_EQ(losses("[sigmoid, sft]"), (Shares{{kSigmoid, 1}, {kSft, 1}}));
  EXPECT_EQ(losses("{sigmoid: 0.8, bco_pair: 0.2, sft: 1.0}"),
            (Shares{{kSigmoid, 0.8}, {kBcoPair, 0.2}, {kSft, 1}}));
  EXPECT_EQ(losses(""), (Shares{{kSigmoid, 1}}));
  const auto overridden = load("", {"train.objective=dpo", "train.loss_type={ipo: 2}"});
  EXPECT_EQ(overridden.config.train.losses().shares, (Shares{{kIpo, 2}}));
  for (const char* of_file : {"{hinge: 1}", "hinge"}) {
    const auto added = load("train: {objective: dpo, loss_type: " + std::string(of_file) + "}\n",
                            {"train.loss_type.sigmoid=2"});
    EXPECT_EQ(added.config.train.losses().shares, (Shares{{kHinge, 1}, {kSigmoid, 2}})) << of_file;
  }
  const auto one = load("", {"train.objective=dpo", "train.loss_type.ipo=2"});
  EXPECT_EQ(one.config.train.losses().shares, (Shares{{kIpo, 2}}));
}

TEST_F(PreferenceLossesTest, AreWrittenAsTheyAreRead) {
  for (const char* text : {"exo_pair", "{sigmoid: 0.8, sft: 1.0}", "{ipo: 0.5}"}) {
    const RunConfig config =
        load(fmt::format("train: {{objective: dpo, loss_type: {}}}\n", text)).config;
    EXPECT_EQ(from_json(to_json(config)).train.loss_type, config.train.loss_type) << text;
    const auto again = load_config(write("again.yaml", to_yaml(config)), {});
    EXPECT_EQ(again.config.train.loss_type, config.train.loss_type) << text;
  }
  EXPECT_EQ(words_of({{{PreferenceLoss::kSigmoid, 0.8}, {PreferenceLoss::kSft, 1}}}),
            "0.8 sigmoid + sft");
}

TEST_F(PreferenceLossesTest, BadOnesAreNamed) {
  const auto refuse = [&](const std::string& text, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text);
    test::expect_error<ConfigError>([&] { load("train: {" + text + "}\n"); }, parts);
  };
  refuse("objective: dpo, loss_type: sigmoidal", {"the loss sigmoidal", "exo_pair"});
  refuse("objective: kto, desirable_weight: 0, undesirable_weight: 0", {"nothing is trained"});
  refuse("objective: dpo, loss_type: simpo", {"set train.objective: simpo"});
  refuse("objective: dpo, loss_type: {sigmoid: 0}", {"weight", "sigmoid"});
  refuse("objective: dpo, loss_type: {sigmoid: -1}", {"weight", "sigmoid"});
  refuse("objective: dpo, loss_type: {sigmoid: .nan}", {"weight", "sigmoid"});
  refuse("objective: dpo, loss_type: {sigmoid: much}", {"weight", "sigmoid"});
  refuse("objective: dpo, loss_type: [sft, sft]", {"sft twice"});
  refuse("objective: dpo, loss_type: []", {"`train.loss_type`"});
  refuse("objective: cpo, loss_type: nca_pair", {"nca_pair", "cpo", "sigmoid, hinge and ipo"});
  refuse("objective: ipo, loss_type: hinge", {"hinge", "ipo"});
  refuse("objective: dpo, loss_type: bco_pair, f_divergence: forward_kl",
         {"`train.f_divergence` is forward_kl", "bco_pair"});
  refuse("objective: dpo, loss_type: {sigmoid: 1, apo_zero: 1}, f_divergence: js_divergence",
         {"apo_zero"});
  refuse("objective: dpo, loss_type: exo_pair, label_smoothing: 0", {"exo_pair is infinite"});
  refuse("objective: dpo, loss_type: robust, label_smoothing: 0.5", {"`train.label_smoothing`"});
  refuse("objective: dpo, ld_alpha: 1.5", {"`train.ld_alpha`"});
}

/// A setting that no loss of the run reads has no effect, and the warning names those that do.
/// Also where the objective is read after the loss.
TEST_F(PreferenceLossesTest, ThoseOfTheObjectiveAreNamed) {
  const auto fix_of = [&](const std::string& train, const std::vector<std::string>& overrides) {
    try {
      load("train: {" + train + "}\n", overrides);
    } catch (const ConfigProblems& error) {
      return error.problems.front().fix;
    }
    return std::string("no error");
  };
  EXPECT_EQ(fix_of("loss_type: nope, objective: grpo", {}),
            "the losses of train.objective grpo are grpo, bnpo, dr_grpo, dapo and cispo");
  EXPECT_EQ(fix_of("loss_type: [nope], objective: grpo", {"train.objective=cpo"}),
            "the losses of train.objective cpo are sigmoid, hinge and ipo");
  EXPECT_EQ(fix_of("objective: ipo, loss_type: {nope: 2}", {}),
            "the loss of train.objective ipo is ipo");
  EXPECT_NE(fix_of("loss_type: nope", {}).find("the losses are sigmoid, hinge"), std::string::npos);
}

TEST_F(PreferenceLossesTest, SettingsThatNoLossReadsAreWarnedOf) {
  const auto warnings = [&](const std::string& text) {
    return load("train: {" + text + "}\n").warnings;
  };
  EXPECT_TRUE(warnings("objective: dpo, label_smoothing: 0.1").empty());
  EXPECT_TRUE(warnings("objective: dpo, loss_type: [hinge, robust], label_smoothing: 0.1").empty());
  EXPECT_TRUE(warnings("objective: simpo, label_smoothing: 0.1, simpo_gamma: 1").empty());
  const auto hinge = warnings("objective: dpo, loss_type: hinge, label_smoothing: 0.1");
  ASSERT_EQ(hinge.size(), 1U);
  EXPECT_NE(hinge[0].find("train.label_smoothing has no effect with train.loss_type hinge: only "
                          "sigmoid, robust, sigmoid_norm and exo_pair read it"),
            std::string::npos)
      << hinge[0];
  EXPECT_EQ(warnings("objective: dpo, discopop_tau: 0.1").size(), 1U);
  EXPECT_TRUE(warnings("objective: dpo, loss_type: discopop, discopop_tau: 0.1").empty());
  EXPECT_EQ(warnings("objective: dpo, f_alpha_divergence_coef: 0.1").size(), 1U);
  EXPECT_TRUE(warnings("objective: dpo, f_divergence: alpha_divergence, "
                       "f_alpha_divergence_coef: 0.1")
                  .empty());
  EXPECT_EQ(warnings("objective: orpo, loss_type: hinge").size(), 1U);
  EXPECT_EQ(warnings("objective: sft, simpo_gamma: 1").size(), 1U);
  EXPECT_EQ(warnings("objective: simpo, ld_alpha: 0.5").size(), 1U);
}

/// A run that is resumed with a default written out is the same run.
TEST_F(PreferenceLossesTest, DefaultsThatAreWrittenOutAreTheSameRun) {
  const auto identity = [&](const std::string& text) {
    return identity_settings(load("train: {" + text + "}\n").config);
  };
  const auto plain = identity("objective: dpo");
  EXPECT_EQ(identity("objective: dpo, loss_type: sigmoid"), plain);
  EXPECT_EQ(identity("objective: dpo, loss_type: {sigmoid: 1}, label_smoothing: 0"), plain);
  EXPECT_EQ(identity("objective: dpo, ld_alpha: 1, simpo_gamma: 3"), plain);
  EXPECT_NE(identity("objective: dpo, loss_type: {sigmoid: 2}"), plain);
  EXPECT_NE(identity("objective: dpo, label_smoothing: 0.1"), plain);
  EXPECT_EQ(identity("objective: simpo, cpo_alpha: 0"), identity("objective: simpo"));
  EXPECT_NE(identity("objective: simpo, cpo_alpha: 1"), identity("objective: simpo"));
  EXPECT_EQ(identity("objective: cpo, cpo_alpha: 1"), identity("objective: cpo"));
}

TEST_F(PreferenceLossesTest, UnusualRunsAreWarnedOf) {
  const auto warnings = [&](const std::string& text) {
    return preference_warnings(load(text).config);
  };
  EXPECT_TRUE(warnings("train: {objective: dpo, learning_rate: 5e-6}\n").empty());
  EXPECT_TRUE(warnings("").empty());
  ASSERT_EQ(warnings("train: {objective: simpo}\n").size(), 1U);
  EXPECT_NE(warnings("train: {objective: simpo}\n")[0].find("0.0002"), std::string::npos);
  const std::string kto = "data: {train: t.jsonl, packing: false}\ntrain: {objective: kto, ";
  EXPECT_TRUE(
      load_config(write("k.yaml", "model: {name: m}\n" + kto + "learning_rate: 1e-6}\n"), {})
          .warnings.empty());
  const auto one = load_config(
      write("k.yaml", "model: {name: m}\n" + kto + "learning_rate: 1e-6, global_batch_size: 1}\n"),
      {});
  ASSERT_EQ(preference_warnings(one.config).size(), 1U);
  EXPECT_NE(preference_warnings(one.config)[0].find("global_batch_size is 1"), std::string::npos);
}

TEST(PreferenceLosses, DefaultsOfTheObjectives) {
  TrainConfig train;
  EXPECT_TRUE(train.losses().shares.empty());
  train.objective = Objective::kIpo;
  EXPECT_EQ(train.losses().shares, (Shares{{PreferenceLoss::kIpo, 1}}));
  EXPECT_EQ(train.resolved_smoothing(PreferenceLoss::kSigmoid), 0);
  EXPECT_EQ(train.resolved_smoothing(PreferenceLoss::kExoPair), kExoSmoothing);
  train.objective = Objective::kCpo;
  EXPECT_EQ(train.resolved_cpo_alpha(), 1);
  train.objective = Objective::kSimpo;
  EXPECT_EQ(train.resolved_cpo_alpha(), 0);
}

}  // namespace
}  // namespace sftrun::config
