#include "sftrun/train/teacher.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "sftrun/data/batch_plan.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

/// A micro-batch of two sequences that are in no file.
data::Batch batch_in_memory(const std::vector<data::Example>& examples) {
  return data::make_batch(data::ExampleStore::in_memory(examples), {{0}, {1}}, 0, 2);
}

class TeacherTest : public ::testing::Test {
 protected:
  Teacher teacher(const TeacherOptions& options) {
    return Teacher(*run_.decoder, *run_.strategy, options);
  }
  Objective distilling(const Teacher& by) const {
    config::TrainConfig config;
    config.objective = config::Objective::kDistill;
    config.kd_alpha = 1, config.kd_beta = by.options().mix.beta;
    return Objective(config, &by);
  }

  test::TemporaryDirectory directory_;
  test::TinyRun run_{directory_.path()};
  int64_t vocab_ = run_.decoder->arch().vocab_size;
  std::vector<data::Example> examples_ = test::read_reference(test::model_path()).examples;
};

TEST_F(TeacherTest, GivesADistributionForEachLabel) {
  constexpr int64_t kTop = 5;
  const data::Batch batch = batch_in_memory(examples_);
  const auto targets = teacher({.k = kTop, .num_tokens = vocab_}).targets(batch);
  ASSERT_TRUE(targets);
  EXPECT_EQ(targets->tokens.sizes(), at::IntArrayRef({batch.label_tokens, kTop}));
  const at::Tensor sums = targets->log_probs.exp().sum(1);
  EXPECT_TRUE(at::allclose(sums, at::ones_like(sums), 1e-5, 1e-5));
  // The likeliest come first, and each is at least as likely as those that are left.
  EXPECT_TRUE((targets->log_probs.narrow(1, 0, kTop).diff() <= 0).all().item<bool>());
}

TEST_F(TeacherTest, SaysNothingOfAnEmptyMicroBatch) {
  EXPECT_FALSE(teacher({.k = 2, .num_tokens = vocab_}).targets(data::Batch()));
}

TEST_F(TeacherTest, IsAtNoDistanceFromItself) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    for (const int64_t k : {int64_t{3}, vocab_}) {
      const Teacher itself = teacher({.k = k, .num_tokens = vocab_, .mix = {1, beta, 1}});
      const Objective objective = distilling(itself);
      const model::PackedBatch packed =
          prepare_for(objective, batch_in_memory(examples_), *run_.decoder, {});
      model::MicroBatchRun run(packed);
      const model::Stage stage = stage_of(*run_.decoder, *run_.strategy);
      stage.forward(run);
      EXPECT_NEAR(stage.loss(run).item<double>(), 0, 1e-5) << beta << ", " << k;
      EXPECT_GT(run.cross_entropy_sum.item<double>(), 1);
    }
  }
}

}  // namespace
}  // namespace sftrun::train
