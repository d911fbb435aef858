#include "sftrun/train/resume.h"

#include <gtest/gtest.h>

#include <fstream>

#include "data/toy_model.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/model/decoder.h"
#include "sftrun/train/adamw.h"
#include "sftrun/train/identity.h"
#include "sftrun/train/run_data.h"
#include "sftrun/train/run_directory.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/single_strategy.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

/// A run's directory that holds what a test puts there.
class RunDirectory : public ::testing::Test {
 protected:
  RunDirectory() { log::configure({.console = log::Level::kOff}); }

  void write(const std::string& name) {
    fs::create_directories((run_dir_ / name).parent_path());
    write_file_atomically(run_dir_ / name, "x");
  }
  void save_checkpoint(int64_t step) {
    const auto decoder = model::Decoder::load(weights::Checkpoint::open(test::kModels / "tied-gqa"),
                                              {.trains = model::Trains::kLora});
    AdamW optimizer(decoder->parameters(), AdamWConfig{});
    TrainState state;
    state.step = step;
    state.identity = {{"model", "m"}};
    fs::create_directories(run_dir_ / "checkpoints");
    const auto strategy = test::single_strategy(*decoder);
    CheckpointStore(run_dir_ / "checkpoints")
        .save(checkpoint_contents(*decoder, *strategy, optimizer, /*is_adapter=*/false),
              std::nullopt, state, optimizer.steps(), {});
  }
  std::optional<fs::path> find(const ResumeOptions& options) {
    return find_checkpoint(options, run_dir_.path(), comm_);
  }

  test::TemporaryDirectory run_dir_;
  parallel::Communicator comm_;
};

TEST_F(RunDirectory, AnEmptyOneStartsANewRun) {
  EXPECT_FALSE(find({}));
  EXPECT_FALSE(find({.from = "never"}));
  EXPECT_FALSE(find({.overwrite = true}));
}

TEST_F(RunDirectory, TheNewestCheckpointIsResumed) {
  save_checkpoint(2);
  save_checkpoint(5);
  EXPECT_EQ(find({}), run_dir_ / "checkpoints" / "step-000005");
  test::expect_error<ConfigError>([&] { find({.from = "never"}); },
                                  {"already has checkpoints", "--resume auto", "--overwrite"});
}

TEST_F(RunDirectory, ARenamedCheckpointIsPassedOver) {
  save_checkpoint(2);
  save_checkpoint(5);
  fs::rename(run_dir_ / "checkpoints" / "step-000005", run_dir_ / "checkpoints" / "step-000004");
  EXPECT_EQ(find({}), run_dir_ / "checkpoints" / "step-000002");
}

/// Rank 0 reads every byte of a checkpoint, and the others wait for what it finds.
TEST_F(RunDirectory, AStopInterruptsTheSearchOnAllRanks) {
  save_checkpoint(2);
  const std::string named = (run_dir_ / "checkpoints" / "step-000002").string();
  const Interruptible scope([] { return true; });
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    comm.barrier("connected");  // rank 0 leaves at once, and the store with it
    EXPECT_THROW(find_checkpoint({}, run_dir_.path(), comm), Interrupted);
    EXPECT_THROW(find_checkpoint({.from = named}, run_dir_.path(), comm), Interrupted);
  });
}

/// Machines that have the same path, and not the same disk.
TEST_F(RunDirectory, EveryRankMustSeeTheCheckpoint) {
  save_checkpoint(2);
  const test::TemporaryDirectory elsewhere;
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    if (comm.rank() == 0) {
      EXPECT_TRUE(find_checkpoint({}, run_dir_.path(), comm).has_value());
    } else {
      test::expect_error<DataError>([&] { find_checkpoint({}, elsewhere.path(), comm); },
                                    {"rank 1 does not see the checkpoint", "share"});
    }
  });
}

TEST_F(RunDirectory, ANamedCheckpointMustBeThereAndWhole) {
  save_checkpoint(2);
  const fs::path named = run_dir_ / "checkpoints" / "step-000002";
  EXPECT_EQ(find({.from = named.string()}), named);
  test::expect_error<ConfigError>([&] { find({.from = "no/such"}); },
                                  {"no checkpoint to resume from", "no/such"});
  {  // of the right length, with other bytes
    std::fstream file(named / "trainable.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\xff\xff\xff\xff", 4);
  }
  test::expect_error([&] { find({.from = named.string()}); }, {"trainable.safetensors"});
}

/// A run without a checkpoint has no result either.
TEST_F(RunDirectory, ResultsOfAnotherRunAreNotOverwritten) {
  write("adapter/adapter_config.json");
  test::expect_error<ConfigError>([&] { find({}); }, {"has adapter but no checkpoint"});
  EXPECT_FALSE(find({.overwrite = true}));
  EXPECT_TRUE(fs::exists(run_dir_ / "old-1" / "adapter" / "adapter_config.json"));
  EXPECT_FALSE(find({}));
}

TEST_F(RunDirectory, AModelIsNotMovedAside) {
  write("config.json");
  for (const bool overwrite : {false, true}) {
    test::expect_error<ConfigError>([&] { find({.overwrite = overwrite}); },
                                    {"directory of a model or an adapter itself", "config.json"});
  }
  EXPECT_TRUE(fs::exists(run_dir_ / "config.json"));
}

TEST_F(RunDirectory, AnEarlierRunIsMovedAsideWithoutOtherFiles) {
  EXPECT_TRUE(set_run_aside(run_dir_.path()).empty());
  write("checkpoints/step-000001/state.json");
  write("metrics.jsonl");
  write("logs/rank-0.log");
  write("notes.txt");
  const fs::path aside = set_run_aside(run_dir_.path());
  EXPECT_EQ(aside, run_dir_ / "old-1");
  EXPECT_TRUE(fs::exists(aside / "checkpoints" / "step-000001" / "state.json"));
  EXPECT_TRUE(fs::exists(aside / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(aside / "logs" / "rank-0.log"));
  EXPECT_TRUE(fs::exists(run_dir_ / "logs" / "rank-0.log"));
  EXPECT_TRUE(fs::exists(run_dir_ / "notes.txt"));
  EXPECT_FALSE(fs::exists(run_dir_ / "metrics.jsonl"));
  write("metrics.jsonl");
  EXPECT_EQ(set_run_aside(run_dir_.path()), run_dir_ / "old-2");
}

TEST_F(RunDirectory, FilesRemovedDuringTheRunAreReported) {
  for (const char* name : {"config.resolved.yaml", "metrics.jsonl", "tensorboard/events",
                           "checkpoints/step-000003/state.json"})
    write(name);
  EXPECT_NO_THROW(require_parts(run_dir_.path(), /*has_tensorboard=*/true, 3, 0));
  fs::remove(run_dir_ / "metrics.jsonl");
  fs::remove(run_dir_ / "tensorboard" / "events");
  EXPECT_EQ(missing_parts(run_dir_.path(), false, 3), (std::vector<std::string>{"metrics.jsonl"}));
  EXPECT_EQ(missing_parts(run_dir_.path(), true, 4),
            (std::vector<std::string>{"metrics.jsonl", "tensorboard", "checkpoints/step-000004"}));
  test::expect_error([&] { require_parts(run_dir_.path(), true, 3, 0); },
                     {"removed from the run directory during the run: metrics.jsonl, tensorboard",
                      "the result is complete"});
  EXPECT_NO_THROW(require_parts(run_dir_.path(), true, 3, 75)) << "a warning";
}

TEST(RenderingTime, IsTheCheckpoints) {
  parallel::Communicator comm;
  TrainState saved;
  saved.rendered_at_unix_s = 1'700'000'000;
  EXPECT_EQ(rendering_time(&saved, 1'800'000'000, comm), 1'700'000'000);
  EXPECT_EQ(rendering_time(nullptr, 1'800'000'000, comm), 1'800'000'000);
}

TEST(Resumable, TakesTheUsersPermissions) {
  config::RunConfig config;
  const ModelIdentity model{.configuration = {{"hidden_size", 8}}, .layout = "m"};
  TrainState saved;
  saved.identity = identity_of(config, model, "d", "");
  const auto other_data = identity_of(config, model, "e", "");
  test::expect_error<ConfigError>([&] { require_resumable("c", saved, other_data, {}); },
                                  {"the training data differ", "--allow-changed-data"});
  EXPECT_NO_THROW(require_resumable("c", saved, other_data, {.allow_changed_data = true}));
  config.tuning.backend = config::TuningBackend::kBnb;
  const auto other_backend = identity_of(config, model, "d", "");
  EXPECT_THROW(require_resumable("c", saved, other_backend, {}), ConfigError);
  EXPECT_NO_THROW(require_resumable("c", saved, other_backend, {.allow_backend_change = true}));
  config = {};
  config.train.epochs = 7;
  EXPECT_NO_THROW(require_resumable("c", saved, identity_of(config, model, "d", ""), {}))
      << "the length is looked at by require_length";
}

/// Examples of byte tokens, one of `length` for each entry.
class ToyData : public ::testing::Test {
 protected:
  ToyData() {
    log::configure({.console = log::Level::kOff});
    config_.model.max_seq_len = 64;
    config_.data.cache_dir = (dir_ / "cache").string();
    config_.data.format = config::RecordFormat::kText;
    config_.train.batch_size.value = config_.train.grad_accum.value = 1;
    config_.train.global_batch_size.value = 1;
  }
  void write_records(const std::string& name, int count) {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += "{\"text\": \"record " + std::to_string(i) + "\"}\n";
    write_file_atomically(dir_ / name, lines);
  }
  RunData load() { return load_run_data(config_, test::toy_model(), 1, nullptr); }

  test::TemporaryDirectory dir_;
  config::RunConfig config_;
};

TEST_F(ToyData, ValidationDataAreAnotherSetOrSplitOff) {
  write_records("train.jsonl", 10);
  write_records("val.jsonl", 3);
  config_.data.train = {{.path = (dir_ / "train.jsonl").string()}};
  const RunData alone = load();
  EXPECT_EQ(alone.train->examples().size(), 10);
  EXPECT_EQ(alone.val_or_null(), nullptr);
  EXPECT_EQ(alone.val_fingerprint(), "");
  ASSERT_EQ(alone.parts.size(), 1U);
  EXPECT_EQ(alone.parts[0].first, config_.data.train[0].path);
  EXPECT_EQ(alone.batches, nullptr);

  config_.data.val = {{.path = (dir_ / "val.jsonl").string()}};
  const RunData both = load();
  EXPECT_EQ(both.val->examples().size(), 3);
  EXPECT_EQ(both.fingerprint, alone.fingerprint);

  config_.data.val.clear();
  config_.data.val_split = 4;
  const RunData split = load();
  EXPECT_EQ(split.train->examples().size(), 6);
  EXPECT_EQ(split.val->examples().size(), 4);
  EXPECT_NE(split.fingerprint, alone.fingerprint);
}

TEST_F(ToyData, StreamedDataHaveBatchesAtOnce) {
  write_records("train.jsonl", 10);
  config_.data.train = {{.path = (dir_ / "train.jsonl").string()}};
  config_.data.streaming = true;
  config_.data.bin_tokens.value = 64;
  config_.train.max_steps = 3;
  RunData streamed = load();
  EXPECT_FALSE(streamed.train);
  ASSERT_NE(streamed.batches, nullptr);
  EXPECT_EQ(streamed.batches->total_steps(), 3);
  EXPECT_FALSE(streamed.fingerprint.empty());
  const Batches* before = streamed.batches.get();
  make_batches(streamed, config_);
  EXPECT_EQ(streamed.batches.get(), before);
}

/// Both sets are read before the run ends.
TEST_F(ToyData, ErrorsOfAllSetsComeTogether) {
  config_.data.train = {{.path = (dir_ / "absent-train.jsonl").string()}};
  config_.data.val = {{.path = (dir_ / "absent-val.jsonl").string()}};
  test::expect_error([&] { load(); }, {"absent-train.jsonl", "absent-val.jsonl"});
}

TEST_F(ToyData, AnotherLengthIsForTheLearningRatesToAllow) {
  write_records("train.jsonl", 12);
  config_.data.train = {{.path = (dir_ / "train.jsonl").string()}};
  config_.data.packing = false;
  config_.train.epochs = 2;
  config_.train.learning_rate = 1e-3;
  config_.train.scheduler = config::Scheduler::kConstant;
  const RunData data = load();
  EXPECT_EQ(num_steps(config_, data.train_or_null()), 24);
  TrainState saved;
  saved.step = 13;
  saved.identity = identity_of(config_, {}, "d", "");
  const auto require = [&](const ResumeOptions& options) {
    require_length("step-000013", saved, config_, data.train_or_null(), options);
  };
  EXPECT_NO_THROW(require({}));
  config_.train.epochs = 3;
  EXPECT_NO_THROW(require({}));
  config_.train.epochs = 1;
  test::expect_error<ConfigError>(
      [&] { require({}); },
      {"train.epochs and train.max_steps give 12 steps, but 13 are already done", "--resume",
       "another output.dir", "--overwrite"});
  config_.train.epochs = 3;
  config_.train.scheduler = config::Scheduler::kLinear;
  test::expect_error<ConfigError>([&] { require({}); }, {"--allow-changed-length", "step-000013"});
  EXPECT_NO_THROW(require({.allow_changed_length = true}));
}

config::RunConfig packed_config() {
  config::RunConfig config;
  config.model.max_seq_len = 2048;
  config.data.packing = true;
  config.train.batch_size.value = config.train.grad_accum.value = 4;
  config.train.global_batch_size.value = 16;
  return config;
}

const data::EpochSize kSmall{.bins = 3, .tokens = 6000, .examples = 60};
const BatchRequest kAuto{.steps_are_auto = true, .max_micro_batch = 8};

TEST(FitBatches, ASmallSetHasMoreSteps) {
  config::RunConfig config = packed_config();
  const std::string notice = fit_batches_to_data(config, kAuto, kSmall, 1, nullptr);
  EXPECT_EQ(config.train.global_batch_size.value,
            data::target_batch(kSmall, config.train.objective_info()));
  EXPECT_EQ(config.data.bin_tokens.value,
            data::bin_tokens(kSmall, config.train.objective_info(), 1, 2048));
  EXPECT_NE(notice.find("packed sequences have 256 tokens instead of 2048"), std::string::npos)
      << notice;
}

TEST(FitBatches, AnAutomaticSizeOfEvaluationsFollows) {
  for (const bool follows : {true, false}) {
    config::RunConfig config = packed_config();
    config.train.eval_batch_size.value = 4;
    BatchRequest request = kAuto;
    request.eval_follows = follows;
    fit_batches_to_data(config, request, kSmall, 1, nullptr);
    EXPECT_EQ(config.train.batch_size.value, 1);
    EXPECT_EQ(config.train.eval_batch_size.value, follows ? 1 : 4);
  }
}

TEST(FitBatches, ARequestKnowsWhetherSizesWereChosen) {
  EXPECT_FALSE(kAuto.asks_for_batch());
  EXPECT_TRUE(BatchRequest{}.asks_for_batch()) << "global_batch_size or grad_accum";
  BatchRequest request = kAuto;
  request.batch_size = 4;
  EXPECT_TRUE(request.asks_for_batch());
}

TEST(FitBatches, GivenSizesStay) {
  config::RunConfig config = packed_config();
  config.data.bin_tokens.value = 1000;
  EXPECT_EQ(fit_batches_to_data(config, {}, kSmall, 1, nullptr), "");
  EXPECT_EQ(config.train.global_batch_size.value, 16);
  EXPECT_EQ(config.data.bin_tokens.value, 1000);
}

TEST(FitBatches, AGivenNumberOfStepsKeepsLongSequences) {
  config::RunConfig config = packed_config();
  config.train.max_steps = 100;
  EXPECT_EQ(fit_batches_to_data(config, kAuto, kSmall, 1, nullptr), "");
  EXPECT_EQ(config.train.global_batch_size.value, config::kTargetGlobalBatch);
  EXPECT_EQ(config.data.bin_tokens.value, 2048);
}

TEST(FitBatches, AResumedRunKeepsItsSizes) {
  const nlohmann::ordered_json saved = {
      {"config", {{"train.global_batch_size", 2}, {"data.bin_tokens", 512}}}};
  config::RunConfig config = packed_config();
  EXPECT_NE(fit_batches_to_data(config, kAuto, kSmall, 1, saved), "");
  EXPECT_EQ(config.train.global_batch_size.value, 2);
  EXPECT_EQ(config.data.bin_tokens.value, 512);
}

TEST(FitBatches, AResumedRunNamesTheProcessesThatDivideItsBatch) {
  const auto expect = [](int64_t batch, int dp_size, const std::string& fix,
                         const BatchRequest& request = kAuto) {
    const nlohmann::ordered_json saved = {{"config", {{"train.global_batch_size", batch}}}};
    config::RunConfig config = packed_config();
    test::expect_error<ConfigError>(
        [&] { fit_batches_to_data(config, request, kSmall, dp_size, saved); },
        {fmt::format("batches of {} (train.global_batch_size), which cannot be divided over {}",
                     batch, dp_size),
         fix + "; or start a new run"});
  };
  expect(1, 2, "resume with 1 process");
  expect(6, 4, "resume with 1 or 2 or 3 or 6 processes");
  BatchRequest request = kAuto;
  request.batch_size = 2;
  expect(6, 2, "resume with 1 or 3 processes", request);
  request.batch_size = 4;
  expect(6, 2, "give train.batch_size its earlier value", request);
}

TEST(FitBatches, WithoutPackingThereAreNoBins) {
  config::RunConfig config = packed_config();
  config.data.packing = false;
  EXPECT_EQ(fit_batches_to_data(config, kAuto, {.bins = 60, .tokens = 6000}, 1, nullptr), "");
  EXPECT_FALSE(config.data.bin_tokens.value);
}

TEST(Identity, OfAModelIsWhatItComputesWith) {
  const auto checkpoint = weights::Checkpoint::open(test::kModels / "tied-gqa");
  data::TextModel text = test::toy_model();
  const ModelIdentity one = model_identity(*checkpoint, text);
  EXPECT_EQ(one.configuration, checkpoint->configuration());
  EXPECT_EQ(one.chat_template_source, test::kChatMl);
  EXPECT_EQ(model_identity(*checkpoint, test::toy_model()).chat_template, one.chat_template);
  text.render_defaults.eos_token = "<other>";
  EXPECT_NE(model_identity(*checkpoint, text).chat_template, one.chat_template);
  EXPECT_NE(model_identity(*checkpoint, test::toy_model(test::kThinkingChatMl)).chat_template,
            one.chat_template);
  EXPECT_EQ(model_identity(*checkpoint, text).tokenizer, one.tokenizer);
}

}  // namespace
}  // namespace sftrun::train
