#include "training.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "prepared_tiny_run.h"
#include "sftrun/core/log.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/weights/adapter_file.h"
#include "support/temporary_directory.h"
#include "trainer_setup.h"

namespace sftrun::engine {
namespace {

namespace fs = std::filesystem;

class TrainAndExport : public ::testing::Test {
 protected:
  TrainAndExport() { log::configure({.console = log::Level::kOff}); }

  /// The next one resumes.   @param meanwhile when all is prepared
  int train(const std::function<void()>& meanwhile = [] {}) {
    PreparedTinyRun tiny(dir_.path());
    if (const int code = tiny.prepare()) return code;
    meanwhile();
    is_resumed_ = tiny.run.resume_from.has_value();
    const int code = train_and_export(tiny.run, tiny.rank);
    base_fingerprint_ = tiny.run.base_fingerprint;
    return code;
  }
  observe::RunReport report() const { return observe::read_run_report(run_ / "run.json"); }
  std::string tensors() const {
    return read_text_file(run_ / "adapter" / "adapter_model.safetensors");
  }

  test::TemporaryDirectory dir_;
  const fs::path run_ = dir_ / "run";
  std::string base_fingerprint_;
  bool is_resumed_ = false;
};

TEST_F(TrainAndExport, WritesTheAdapterAndSaysSo) {
  ASSERT_EQ(train(), 0);
  EXPECT_EQ(report().status, "done");
  EXPECT_EQ(report().first_step, 0);
  EXPECT_EQ(report().last_step, 2);
  EXPECT_TRUE(report().error.empty());
  EXPECT_EQ(report().base_model_fingerprint, base_fingerprint_);
  EXPECT_GE(report().finished_at.value_or(0), report().started_at);
  ASSERT_EQ(report().ranks.size(), 1U);
  EXPECT_GT(report().ranks[0].bytes.trainable, 0U);
  EXPECT_TRUE(report().planned.has_value());
  EXPECT_TRUE(fs::exists(run_ / "config.resolved.yaml"));
  EXPECT_EQ(weights::AdapterConfig::load(run_ / "adapter").lora.r, 2);
  EXPECT_FALSE(tensors().empty());
}

TEST_F(TrainAndExport, ACompleteRunStaysAsItIs) {
  ASSERT_EQ(train(), 0);
  const std::string before = tensors(), said = report().to_json().dump();
  ASSERT_EQ(train(), 0);
  EXPECT_TRUE(is_resumed_);
  EXPECT_EQ(report().to_json().dump(), said);
  fs::remove_all(run_ / "adapter");
  ASSERT_EQ(train(), 0);
  EXPECT_EQ(tensors(), before) << "written again from the last checkpoint";
}

TEST_F(TrainAndExport, AStopBeforeTheFirstStepLeavesNothing) {
  EXPECT_EQ(train([] { ::raise(SIGTERM); }), launch::exit_code_of_stop_signal(SIGTERM));
  EXPECT_FALSE(fs::exists(run_ / "adapter"));
  EXPECT_EQ(train(), 0);
  EXPECT_FALSE(is_resumed_);
  EXPECT_TRUE(fs::exists(run_ / "adapter"));
}

TEST(TrainerSetup, DescribesTheAdapterThatIsTrained) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory dir;
  PreparedTinyRun tiny(dir.path());
  ASSERT_EQ(tiny.prepare(), 0);
  train::TrainerInputs inputs = trainer_inputs(tiny.run, tiny.rank);
  EXPECT_EQ(inputs.run_dir, tiny.run.run_dir());
  EXPECT_EQ(inputs.decoder, tiny.run.decoder.get());
  EXPECT_EQ(inputs.val, nullptr);
  ASSERT_NE(inputs.batches, nullptr);
  EXPECT_EQ(inputs.batches->total_steps(), 2);
  EXPECT_EQ(inputs.rendered_at_unix_s, 1'700'000'000);
  EXPECT_EQ(inputs.hooks.stop_exit_code(), 0);
  EXPECT_NO_THROW(inputs.hooks.look_at_base());
  const auto held = describe_adapter(tiny.run, inputs);
  ASSERT_TRUE(held && inputs.adapter);
  EXPECT_EQ(held->fingerprint, tiny.run.base_fingerprint);
  EXPECT_EQ(held->form, "");
  EXPECT_EQ(held->dtype, "fp32");
  EXPECT_EQ(inputs.adapter->lora.r, 2);
  EXPECT_EQ(training_answers(tiny.run, tiny.rank), nullptr) << "none were asked for";
}

TEST(TrainerSetup, FullTuningHasNoAdapter) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory dir;
  PreparedTinyRun tiny(dir.path(), {"tuning.mode=full"});
  ASSERT_EQ(tiny.prepare(), 0);
  train::TrainerInputs inputs = trainer_inputs(tiny.run, tiny.rank);
  EXPECT_FALSE(describe_adapter(tiny.run, inputs));
  EXPECT_FALSE(inputs.adapter);
}

TEST(TrainerSetup, AnswersNeedValidationData) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory dir;
  PreparedTinyRun tiny(dir.path(), {"data.val_split=1", "train.predict_with_generate=true"});
  ASSERT_EQ(tiny.prepare(), 0);
  ASSERT_NE(tiny.run.data.val_or_null(), nullptr);
  EXPECT_NE(training_answers(tiny.run, tiny.rank), nullptr);
}

TEST(TrainerSetup, CommandsForEventsAreStartedByTheFirstRankAlone) {
  config::RunConfig config;
  config.callbacks.command = "notify";
  config.callbacks.timeout = "90s";
  config.output.dir = "runs/a";
  Rank main;
  const launch::EventCommandOptions options = event_commands(config, main);
  EXPECT_EQ(options.command, "notify");
  EXPECT_EQ(options.timeout_s, 90);
  EXPECT_EQ(options.run_dir, "runs/a");
  const Rank other(main, {.rank = 1, .world_size = 2}, 0);
  EXPECT_EQ(event_commands(config, other).command, "");
}

}  // namespace
}  // namespace sftrun::engine
