#include "prepared_run.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "prepared_tiny_run.h"
#include "sftrun/core/log.h"
#include "sftrun/weights/weights_summary.h"
#include "support/temporary_directory.h"

namespace sftrun::engine {
namespace {

TEST(PreparedRuns, HaveDataModelAndIdentity) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory dir;
  PreparedTinyRun tiny(dir.path());
  ASSERT_EQ(tiny.prepare(), 0);
  PreparedRun& run = tiny.run;
  ASSERT_NE(run.data.train_or_null(), nullptr);
  EXPECT_EQ(run.data.train->examples().size(), 4);
  EXPECT_EQ(run.data.val_or_null(), nullptr);
  EXPECT_EQ(run.decoder->options().trains, model::Trains::kLora);
  EXPECT_EQ(run.decoder->options().lora.r, 2);
  EXPECT_NE(run.strategy, nullptr);
  EXPECT_FALSE(run.leaves_template_unused);
  EXPECT_EQ(run.chat_template, std::nullopt) << "the model's own";
  EXPECT_EQ(run.base_fingerprint,
            weights::fingerprint(*run.checkpoint,
                                 weights::hash_weights(*run.checkpoint, FileHashes({}))));
}

TEST(PreparedRuns, AnotherTemplateIsAnotherRun) {
  log::configure({.console = log::Level::kOff});
  const std::string other =
      "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|end|>' }}"
      "{% endfor %}";
  const test::TemporaryDirectory dir;
  const auto prepared = [&](const std::vector<std::string>& overrides) {
    PreparedTinyRun tiny(dir.path(), overrides);
    EXPECT_EQ(tiny.prepare(), 0);
    return std::move(tiny.run);
  };
  const PreparedRun own = prepared({}), same = prepared({}),
                    changed = prepared({"model.chat_template=" + other});
  EXPECT_EQ(same.identity, own.identity);
  EXPECT_EQ(changed.chat_template, other);
  EXPECT_EQ(changed.data.fingerprint, own.data.fingerprint) << "of the files alone";
  EXPECT_NE(changed.identity, own.identity);
  EXPECT_EQ(changed.base_fingerprint, own.base_fingerprint);
}

TEST(PreparedRuns, AStopEndsTheLoading) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory dir;
  PreparedTinyRun tiny(dir.path());
  ::raise(SIGTERM);
  EXPECT_EQ(tiny.prepare(), launch::exit_code_of_stop_signal(SIGTERM));
  EXPECT_EQ(tiny.run.decoder, nullptr);
}

TEST(AutoValues, OfTheModelAreResolved) {
  const auto model = weights::Checkpoint::open(test::kModels / "tied-gqa");
  config::RunConfig config;
  ASSERT_EQ(config.train.router_aux_loss_coef, std::nullopt);
  resolve_auto(config, *model);
  EXPECT_EQ(config.train.router_aux_loss_coef.value_or(0), 0) << "it has no router";
}

TEST(UnpackingWarning, IsForTrainedWeightsOfQuantisedFilesAlone) {
  const test::TemporaryDirectory dir;
  const auto warning = [&](config::TuningMode mode, const std::filesystem::path& model) {
    write_file_atomically(dir / "log", "");
    log::configure({.console = log::Level::kOff, .file = dir / "log"});
    config::TuningConfig tuning;
    tuning.mode = mode;
    warn_of_unpacking(tuning, *weights::Checkpoint::open(model));
    log::configure({.console = log::Level::kOff});
    return read_text_file(dir / "log");
  };
  const auto quantised = test::kData / "converted" / "llama-Q8_0.gguf",
             dense = test::kModels / "tied-gqa";
  EXPECT_NE(warning(config::TuningMode::kFull, quantised)
                .find("the model's files are quantised (Q8_0); trained weights start from the "
                      "dequantised values"),
            std::string::npos);
  EXPECT_EQ(warning(config::TuningMode::kLora, quantised), "");
  EXPECT_EQ(warning(config::TuningMode::kFull, dense), "");
}

}  // namespace
}  // namespace sftrun::engine
