#include "rank.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

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
