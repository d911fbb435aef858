#include "sftrun/config/objectives.h"

#include <fmt/format.h>

#include <set>

#include "config_test_base.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using ObjectivesTest = ConfigTest;

TEST(Objectives, RowsAreFoundByTheirNames) {
  std::set<std::string_view> names(kOtherObjectives.begin(), kOtherObjectives.end());
  for (const ObjectiveInfo& info : kObjectives) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " is listed twice";
    EXPECT_EQ(find_objective(info.name), &info);
    const std::string_view torchtune = info.torchtune_loss;
    EXPECT_EQ(find_objective_of_torchtune(torchtune), torchtune.empty() ? nullptr : &info);
  }
  EXPECT_EQ(find_objective("nothing"), nullptr);
}

TEST(Objectives, DropoutWouldChangeWhatIsComparedWithTheReference) {
  for (const ObjectiveInfo& info : kObjectives)
    EXPECT_FALSE(info.needs_reference && info.has_dropout) << info.name;
}

/// The settings without which a configuration with this objective is refused, and the objective.
std::vector<std::string> least_settings(const ObjectiveInfo& info) {
  std::vector<std::string> settings = {fmt::format("train.objective={}", info.name)};
  if (info.needs_teacher) settings.emplace_back("train.teacher=scores");
  return settings;
}

std::vector<std::string> with(std::vector<std::string> settings,
                              const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// The YAML knows every row, a run can be judged by each of its metrics, and its settings have an
/// effect with it alone.
TEST_F(ObjectivesTest, ConfigurationsReadTheRows) {
  for (const ObjectiveInfo& info : kObjectives) {
    SCOPED_TRACE(info.name);
    const std::vector<std::string> least = least_settings(info);
    EXPECT_EQ(load("", least).config.train.objective, info.objective);
    for (const std::string_view metric : info.metrics) {
      const std::string judged = fmt::format("train.metric_for_best_model=eval_{}", metric);
      EXPECT_NO_THROW(load("", with(least, {"data.val=v.jsonl", judged}))) << metric;
    }
    for (const ObjectiveInfo& other : kObjectives) {
      const auto warnings = load("", with(least_settings(other), {"train.beta=0.25"})).warnings;
      EXPECT_EQ(warnings.empty(), other.reads("train.beta")) << other.name;
    }
  }
}

TEST_F(ObjectivesTest, WarningsNameTheReadersOfASetting) {
  const auto warnings = load("", {"train.beta=0.25"}).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find(fmt::format(
                "train.beta has no effect with train.objective sft: only {} ",
                joined(objective_names([](const auto& row) { return row.reads("train.beta"); }),
                       " and "))),
            std::string::npos)
      << warnings.front();
}

/// Passes of an objective without dropout are those of an evaluation, so noise would be ignored.
TEST_F(ObjectivesTest, NoiseNeedsAnObjectiveWithDropout) {
  int refusing = 0;
  for (const ObjectiveInfo& info : kObjectives) {
    SCOPED_TRACE(info.name);
    const std::vector<std::string> noisy =
        with(least_settings(info), {"train.neftune_noise_alpha=5"});
    if (info.has_dropout) {
      EXPECT_NO_THROW(load("", noisy));
      continue;
    }
    ++refusing;
    test::expect_error<ConfigError>([&] { load("", noisy); }, {"`train.neftune_noise_alpha`"});
  }
  EXPECT_GE(refusing, 1);
}

TEST_F(ObjectivesTest, ATeacherIsNamed) {
  test::expect_error<ConfigError>([&] { load("", {"train.objective=distill"}); },
                                  {"`train.teacher` names no teacher", "--topk 64"});
  EXPECT_NO_THROW(load("", {"train.objective=distill", "train.teacher=t", "data.streaming=true",
                            "train.max_steps=3"}));
  EXPECT_TRUE(objective_info(Objective::kDistill).predicts_labels());
  EXPECT_EQ(objective_info(Objective::kDistill).cross_entropy_metric(), "ce_loss");
}

TEST(Objectives, AConfigurationTakesOneName) {
  for (const ExampleForm form : {ExampleForm::kAnswer, ExampleForm::kPair, ExampleForm::kJudged}) {
    const ObjectiveInfo* first = find_objective(first_objective_for(form));
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->form, form);
    EXPECT_TRUE(objectives_for(form).starts_with(first->name));
  }
}

}  // namespace
}  // namespace sftrun::config
