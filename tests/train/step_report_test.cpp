#include "../../src/train/step_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tiny_run.h"

namespace sftrun::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

RankNumbers numbers(std::vector<double> losses, double num_terms) {
  RankNumbers numbers{.grad_norm = 8, .losses = std::move(losses)};
  numbers.host.num_terms = num_terms;
  numbers.host.gpu_utilization = 50;
  return numbers;
}

TEST(StepReports, MeansAreOverTheTermsOfAllRanks) {
  std::vector<RankNumbers> ranks = {numbers({3, 5}, 4), numbers({2, 0}, 1)};
  ranks[0].metrics = {6};
  ranks[1].metrics = {4};
  ranks[0].aux_losses = {1, 2};
  ranks[1].aux_losses = {3, 0};
  QueuedStep queued{.step = 7, .loss_scale = 2, .metric_names = {"accuracy"}};
  const parallel::Mesh mesh = parallel::Mesh::replicated(2, 0);
  const StepReport report = report_of(ranks, mesh, queued, {5, /*num_micro_batches=*/3});
  EXPECT_EQ(report.loss, 2);
  EXPECT_EQ(report.loss_per_rank, (std::vector<double>{2, 2}));
  EXPECT_EQ(report.grad_norm, 4) << "of the gradients without the loss scale";
  EXPECT_EQ(report.aux_loss, 2);
  EXPECT_EQ(report.objective, (observe::NamedValues{{"accuracy", 2}}));
  EXPECT_TRUE(report.is_finite());
  EXPECT_FALSE(report_of(ranks, mesh, queued, {5}).aux_loss) << "there is no such loss";
}

/// Of the stages of a pipeline the last one has the losses.
TEST(StepReports, LossesCountOnceForEachPartOfTheBatch) {
  const parallel::Mesh mesh({.pp = 2}, 0);
  const StepReport report =
      report_of({numbers({100}, 4), numbers({8}, 4)}, mesh, {.loss_scale = 1}, {4});
  EXPECT_EQ(report.loss, 2);
  EXPECT_TRUE(std::isnan(report.loss_per_rank[0]));
  EXPECT_EQ(report.loss_per_rank[1], 2);
}

TEST(StepReports, RanksAgree) {
  std::vector<RankNumbers> ranks = {numbers({1}, 1), numbers({1}, 1)};
  const parallel::Mesh mesh = parallel::Mesh::replicated(2, 0);
  const auto report = [&] { return report_of(ranks, mesh, {}, {2}); };
  EXPECT_EQ(report().stop_exit_code, 0);
  EXPECT_FALSE(report().save_due || report().all_parts_written);
  ranks[1].host.stop_exit_code = 75;
  ranks[1].host.save_due = 1;
  ranks[1].host.has_written_part = 1;
  EXPECT_EQ(report().stop_exit_code, 75) << "of any rank";
  EXPECT_FALSE(report().save_due) << "by the clock of rank 0";
  EXPECT_FALSE(report().all_parts_written);
  ranks[0].host.save_due = ranks[0].host.has_written_part = 1;
  EXPECT_TRUE(report().save_due && report().all_parts_written);
  EXPECT_EQ(report().gpu_utilization.size(), 2U);
  ranks[1].host.gpu_utilization = -1;
  EXPECT_TRUE(report().gpu_utilization.empty()) << "a rank has no reading";
}

/// A broken link: the norm is the same on all ranks otherwise.
TEST(StepReports, ANormThatIsNotFiniteOnAnyRankCounts) {
  std::vector<RankNumbers> ranks = {numbers({1}, 1), numbers({1}, 1)};
  ranks[1].grad_norm = kNaN;
  const StepReport report = report_of(ranks, parallel::Mesh::replicated(2, 0), {}, {2});
  EXPECT_TRUE(std::isnan(report.grad_norm));
  EXPECT_FALSE(report.is_finite());
  EXPECT_FALSE(report.not_finite_at) << "the losses are finite";
}

/// Bins 0, 1 are rank 0's first micro-batch, 2, 3 rank 1's, and so on.
TEST(StepReports, TheErrorNamesTheRecordsOfTheMicroBatch) {
  std::vector<data::Example> examples = test::read_reference(test::model_path()).examples;
  while (examples.size() < 8) examples.push_back(examples[0]);
  for (size_t i = 0; i < examples.size(); ++i) examples[i].line = static_cast<int64_t>(10 + i);
  QueuedStep queued{.step = 4};
  queued.batch.examples = data::ExampleStore::in_memory(examples);
  for (int64_t bin = 0; bin < 8; ++bin) queued.batch.bins.push_back({bin});
  const test::RepeatedBatches batches;
  const parallel::Mesh mesh = parallel::Mesh::replicated(2, 0);
  const auto error = [&](const std::vector<RankNumbers>& ranks) {
    return not_finite_error(report_of(ranks, mesh, queued, {8}), queued, batches, mesh,
                            /*micro_batch_size=*/2, "the newest checkpoint is of step 3");
  };
  const Error located = error({numbers({1, 1}, 4), numbers({1, kNaN}, 4)});
  EXPECT_EQ(located.message(),
            "the loss is not finite at step 5; no weight was changed by this step");
  EXPECT_EQ(located.where(), "examples.jsonl, lines 16, 17 of the micro-batch where it appeared");
  EXPECT_TRUE(located.fix().ends_with("; the newest checkpoint is of step 3"));
  queued.batch.deal = {{0, 7}, {1, 2}, {4, 5}, {3, 6}};
  EXPECT_EQ(error({numbers({1, 1}, 4), numbers({1, kNaN}, 4)}).where(),
            "examples.jsonl, lines 13, 16 of the micro-batch where it appeared");
  RankNumbers broken = numbers({1, 1}, 4);
  broken.grad_norm = kNaN;
  const Error elsewhere = error({broken, numbers({1, 1}, 4)});
  EXPECT_TRUE(elsewhere.message().starts_with("the gradient norm is not finite"));
  EXPECT_EQ(elsewhere.where(),
            "examples.jsonl, lines 10, 11, 12, 13, 14, 15, 16, 17 of this step's batch");
}

}  // namespace
}  // namespace sftrun::train
