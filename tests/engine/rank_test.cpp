#include "rank.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>

#include "memory_advice.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

using config::CommBackend;

TEST(CommBackend, FollowsTheDeviceUnlessItIsGiven) {
  EXPECT_EQ(choose_comm_backend(CommBackend::kAuto, at::kCPU), "gloo");
  EXPECT_EQ(choose_comm_backend(CommBackend::kAuto, at::Device(at::kCUDA, 0)), "nccl");
  EXPECT_EQ(choose_comm_backend(CommBackend::kGloo, at::Device(at::kCUDA, 0)), "gloo");
  EXPECT_EQ(choose_comm_backend(CommBackend::kNccl, at::Device(at::kCUDA, 0)), "nccl");
  test::expect_error<ConfigError>([] { choose_comm_backend(CommBackend::kNccl, at::kCPU); },
                                  {"NCCL needs GPUs", "parallel.backend", "gloo or auto"});
}

TEST(Version, AnotherOneIsRefusedOnEveryRank) {
  test::run_ranks(3, [](parallel::Communicator& comm) {
    require_same_version(comm, "1.2.0", "abc");
    test::expect_error<ConfigError>(
        [&] { require_same_version(comm, comm.rank() == 1 ? "1.3.0" : "1.2.0", "abc"); },
        {"rank 1 runs sftrun 1.3.0, rank 0 runs 1.2.0", "install the same version"});
  });
}

TEST(Version, AnotherBuildIsWarnedOf) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  test::run_ranks(2, [](parallel::Communicator& comm) {
    require_same_version(comm, "1.2.0", comm.rank() == 1 ? "def" : "abc");
  });
  log::configure({.console = log::Level::kOff});
  const std::string text = read_text_file(dir / "log");
  EXPECT_NE(
      text.find("rank 1 runs another build of sftrun 1.2.0 than rank 0 (def, rank 0 runs abc)"),
      std::string::npos)
      << text;
}

TEST(Interruption, OfWorkOfARankByAStop) {
  Rank rank;
  bool is_done = false;
  EXPECT_EQ(rank.interruptible([&] { is_done = true; }), 0);
  EXPECT_TRUE(is_done);
  const std::shared_ptr<const weights::Checkpoint> checkpoint =
      weights::Checkpoint::open(test::kModels / "tied-gqa");
  std::unique_ptr<model::Decoder> decoder;
  const auto load = [&] { decoder = load_decoder(checkpoint, {}); };
  ::raise(SIGTERM);
  EXPECT_EQ(rank.before_training(load), 75);
  EXPECT_FALSE(decoder);
  load();  // elsewhere nothing is interrupted
  EXPECT_TRUE(decoder);
}

TEST(Interruption, OfLoadingThatRanksDoTogether) {
  Rank rank;
  const std::shared_ptr<const weights::Checkpoint> checkpoint =
      weights::Checkpoint::open(test::kModels / "tied-gqa");
  std::unique_ptr<model::Decoder> decoder;
  constexpr int kRead = 3;
  int num_parts = 0;
  const int code = rank.together(nullptr, [&](const std::function<void()>& stop_point) {
    model::DecoderOptions options;
    options.stop_point = [&] {
      stop_point();
      if (++num_parts == kRead) ::raise(SIGTERM);
    };
    decoder = load_decoder(checkpoint, options);
  });
  EXPECT_EQ(code, 75);
  EXPECT_EQ(num_parts, kRead);
  EXPECT_FALSE(decoder);
}

TEST(Interruption, WhatRank0GivesReachesEveryRank) {
  Rank alone;
  EXPECT_EQ(alone.of_main(3), 3);
}

TEST(Logging, WithoutALauncherEachRankHasAFile) {
  const test::TemporaryDirectory run_dir;
  configure_logging({.rank = 1, .world_size = 2}, run_dir.path());
  log::info("a line of rank 1");
  log::flush();
  const std::string lines = read_text_file(run_dir / "logs" / "rank-1.log");
  EXPECT_NE(lines.find("[rank 1] a line of rank 1"), std::string::npos) << lines;
  log::configure({.console = log::Level::kOff});
}

TEST(Logging, ALauncherKeepsTheFile) {
  const test::TemporaryDirectory run_dir;
  configure_logging({.rank = 1, .world_size = 2, .supervised = true}, run_dir.path());
  EXPECT_TRUE(std::filesystem::is_empty(run_dir.path()));
  log::configure({.console = log::Level::kOff});
}

TEST(Status, IsTheEvents) {
  const train::TrainEvent event{.phase = "saving",
                                .step = 3,
                                .total_steps = 9,
                                .loss = 1.5,
                                .tokens_per_second = 100,
                                .eta_s = 7,
                                .memory_bytes = 1024};
  EXPECT_EQ(status_of(event), (launch::Status{.phase = launch::Phase::kSaving,
                                              .step = 3,
                                              .total_steps = 9,
                                              .loss = 1.5,
                                              .tokens_per_second = 100,
                                              .eta_s = 7,
                                              .memory_bytes = 1024}));
}

}  // namespace
}  // namespace sftrun::engine
