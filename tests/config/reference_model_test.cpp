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

/// Another model is always asked before the first step; then the start need not be kept.
TEST_F(ReferenceModelTest, ItsLogProbabilitiesMayBePrecomputed) {
  const auto run = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"train.objective=dpo", "tuning.mode=full"});
    return load("", settings).config;
  };
  EXPECT_FALSE(precomputes_reference(run({}).train));
  EXPECT_TRUE(starts_as_reference(run({})));
  const RunConfig start = run({"train.reference_logps=precomputed"});
  EXPECT_TRUE(precomputes_reference(start.train) && starts_as_reference(start));
  EXPECT_FALSE(keeps_start(start));
  const RunConfig other = run({"train.reference=models/other"});
  EXPECT_EQ(other.train.reference_model(), ReferenceModel::kPath);
  EXPECT_TRUE(precomputes_reference(other.train));
  EXPECT_FALSE(keeps_start(other) || starts_as_reference(other));
  EXPECT_FALSE(precomputes_reference(
      load("", {"train.objective=sft", "train.reference_logps=precomputed"}).config.train));
}

TEST_F(ReferenceModelTest, StreamedAnswersAreNotKnownBefore) {
  const std::vector<std::string> streamed = {"train.objective=dpo", "data.streaming=true",
                                             "train.max_steps=3"};
  EXPECT_NO_THROW(load("", streamed));
  for (const auto& [setting, fix] :
       {std::pair{"train.reference_logps=precomputed", "set train.reference_logps to online"},
        std::pair{"train.reference=models/other", "set train.reference to start"}}) {
    std::vector<std::string> settings = streamed;
    settings.emplace_back(setting);
    test::expect_error<ConfigError>([&] { load("", settings); }, {"`data.streaming`", fix});
  }
}

TEST_F(ReferenceModelTest, APathMustExist) {
  const LoadedConfig loaded = load("", {"train.objective=dpo", "train.reference=first"});
  test::expect_error<DataError>([&] { require_files(loaded); },
                                {"`train.reference` is first", "start, base, or the path"});
}

}  // namespace
}  // namespace sftrun::config
