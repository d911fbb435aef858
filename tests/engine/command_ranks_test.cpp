#include "command_ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/test_data.h"
#include "two_ranks.h"

namespace sftrun::engine {
namespace {

const app::ComputeRequest kCpuInFp32{.device = "cpu", .dtype = "fp32", .threads = 1};

/// A command sets the threads of its process, which here has other tests.
class RunAsRanks : public ::testing::Test {
 protected:
  ~RunAsRanks() override { at::set_num_threads(num_threads_); }

 private:
  const int num_threads_ = at::get_num_threads();
};

TEST_F(RunAsRanks, ReturnsTheCodeOfItsBody) {
  const int code =
      run_as_ranks({.compute = kCpuInFp32}, {}, [](const app::RanksRequest&, Rank& rank) {
        EXPECT_TRUE(rank.is_main());
        EXPECT_EQ(rank.env().world_size, 1);
        return 3;
      });
  EXPECT_EQ(code, 3);
}

TEST_F(RunAsRanks, AFailureIsItsExitCode) {
  log::configure({.console = log::Level::kOff});
  const auto code_of = [](const auto& error) {
    return run_as_ranks({.compute = kCpuInFp32}, {},
                        [&](const app::RanksRequest&, Rank&) -> int { throw error; });
  };
  EXPECT_EQ(code_of(DataError("a", "b")), static_cast<int>(DataError("", "").code()));
  EXPECT_EQ(code_of(ConfigError("a", "b")), static_cast<int>(ConfigError("", "").code()));
  EXPECT_NE(code_of(std::runtime_error("a")), 0);
}

TEST_F(RunAsRanks, ADeviceMapHasAThreadForEachStage) {
  log::configure({.console = log::Level::kOff});
  app::RanksRequest request{.compute = kCpuInFp32,
                            .parallel = app::ParallelRequest{.strategy = "device_map", .pp = 2}};
  std::mutex mutex;
  std::set<int> seen;
  std::set<size_t> num_units;
  const int code = run_as_ranks(request, {}, [&](const app::RanksRequest& asked, Rank& rank) {
    EXPECT_TRUE(asked.in_one_process);
    EXPECT_EQ(asked.parallel->strategy, "pipeline");
    CommandRanks ranks(asked, rank);
    EXPECT_NO_THROW(ranks.require_one_copy());
    if (const int stop = ranks.connect()) return stop;
    LoadedModel model;
    if (const int stop = ranks.load_model({.model = test::kModels / "tied-gqa"}, model))
      return stop;
    const std::lock_guard lock(mutex);
    seen.insert(rank.env().rank);
    const layers::UnitRange held = model.decoder->held_units();
    num_units.insert(static_cast<size_t>(held.end - held.first));
    EXPECT_EQ(held.contains(model.decoder->head_unit()), rank.env().rank == 1);
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(seen, (std::set<int>{0, 1}));
  EXPECT_EQ(num_units, std::set<size_t>{2}) << "half of embedding, two layers and head";
}

TEST_F(RunAsRanks, ADeviceMapOfOneStageIsTheWholeModel) {
  app::RanksRequest request{.compute = kCpuInFp32,
                            .parallel = app::ParallelRequest{.strategy = "device_map"}};
  const int code = run_as_ranks(request, {}, [](const app::RanksRequest& asked, Rank& rank) {
    EXPECT_FALSE(asked.parallel.has_value());
    CommandRanks ranks(asked, rank);
    EXPECT_EQ(ranks.connect(), 0);
    LoadedModel model;
    EXPECT_EQ(ranks.load_model({.model = test::kModels / "tied-gqa"}, model), 0);
    EXPECT_EQ(model.division, nullptr);
    EXPECT_NE(model.decoder, nullptr);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(CommandRanksTest, ADivisionMustFitTheRanks) {
  const app::RanksRequest copies{.compute = kCpuInFp32};
  {
    Rank alone;
    EXPECT_NO_THROW(CommandRanks(copies, alone).require_one_copy());
  }
  TwoRanks ranks;
  const app::RanksRequest three{.compute = kCpuInFp32,
                                .parallel = app::ParallelRequest{.strategy = "tensor", .tp = 3}};
  test::expect_error<ConfigError>([&] { CommandRanks(three, ranks.first); }, {"3", "tp"});
  test::expect_error<ConfigError>([&] { CommandRanks(copies, ranks.first).require_one_copy(); },
                                  {"the 2 processes would have more than one copy of the model"});
  const app::RanksRequest tensor{.compute = kCpuInFp32,
                                 .parallel = app::ParallelRequest{.strategy = "tensor"}};
  EXPECT_NO_THROW(CommandRanks(tensor, ranks.first).require_one_copy());
}

TEST(CommandResult, GoesToStandardOutput) {
  const Rank rank;
  ::testing::internal::CaptureStdout();
  write_result({}, rank, "{\"a\": 1}\n");
  std::fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "{\"a\": 1}\n");
}

}  // namespace
}  // namespace sftrun::engine
