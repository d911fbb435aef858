#include "sftrun/config/reference_model.h"

#include "config_test_base.h"

namespace sftrun::config {
namespace {

using ReferenceModelTest = ConfigTest;

struct ReferenceCase {
  std::vector<std::string> set;
  bool keeps_start = false, is_base = true;
};

/// The start is kept where the model without adapters is not the model as it starts.
TEST_F(ReferenceModelTest, TheStartIsKeptWhereItIsNotTheBase) {
  const std::vector<ReferenceCase> cases = {
      {.set = {}},
      {.set = {"tuning.lora.dora=true"}},
      {.set = {"tuning.lora.init_from=runs/first"}, .keeps_start = true},
      {.set = {"tuning.lora.init=pissa"}, .keeps_start = true, .is_base = false},
      {.set = {"tuning.lora.modules_to_save=[lm_head]"}, .keeps_start = true, .is_base = false},
      {.set = {"tuning.train_parts={language: lora, projector: full}"},
       .keeps_start = true,
       .is_base = false},
      {.set = {"tuning.mode=full"}, .keeps_start = true, .is_base = false},
      {.set = {"tuning.mode=partial", "tuning.trainable=[norm]"},
       .keeps_start = true,
       .is_base = false}};
  for (const ReferenceCase& one : cases) {
    SCOPED_TRACE(join(one.set, " "));
    std::vector<std::string> settings = one.set;
    EXPECT_FALSE(keeps_start(load("", settings).config)) << "sft has no reference model";
    settings.emplace_back("train.objective=dpo");
    const RunConfig run = load("", settings).config;
    EXPECT_EQ(keeps_start(run), one.keeps_start);
    EXPECT_EQ(starts_as_base(run.tuning), !one.keeps_start);
    EXPECT_EQ(is_base_without_adapters(run.tuning), one.is_base);
    settings.emplace_back("train.reference=base");
    if (one.is_base)
      EXPECT_FALSE(keeps_start(load("", settings).config));
    else
      test::expect_error<ConfigError>([&] { load("", settings); },
                                      {"`train.reference`", "set train.reference to start"});
  }
}

TEST_F(ReferenceModelTest, OtherWordsAreRefused) {
  test::expect_error<ConfigError>(
      [&] { load("", {"train.objective=dpo", "train.reference=first"}); },
      {"`train.reference` is `first`", "start or base"});
}

}  // namespace
}  // namespace sftrun::config
