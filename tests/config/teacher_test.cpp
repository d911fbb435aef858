#include "sftrun/config/teacher.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::config {
namespace {

TEST(Teacher, IsScoresWhereTheirDescriptionIs) {
  const test::TemporaryDirectory directory;
  TrainConfig train;
  train.teacher = directory.path().string();
  EXPECT_EQ(teacher_kind(train), TeacherKind::kNone);  // of another objective
  train.objective = Objective::kDistill;
  EXPECT_EQ(teacher_kind(train), TeacherKind::kModel);
  write_file_atomically(directory.path() / "teacher.json", "{}");
  EXPECT_EQ(teacher_kind(train), TeacherKind::kScores);
  train.teacher.clear();
  EXPECT_EQ(teacher_kind(train), TeacherKind::kNone);
}

TEST(Teacher, IsDividedAsTheFrozenWeightsOfARun) {
  ParallelConfig fsdp;
  fsdp.axes = {.pp = 2, .dp_shard = 4, .tp = 2, .level = ShardLevel::kWeights};
  EXPECT_EQ(parallel_of_frozen(fsdp).axes, fsdp.axes);
  ParallelConfig zero2;
  zero2.axes = {.dp_replicate = 2, .dp_shard = 4, .level = ShardLevel::kGradients};
  const Axes whole = parallel_of_frozen(zero2).axes;
  EXPECT_EQ(whole.dp_replicate, 8);
  EXPECT_EQ(whole.dp_shard, 1);
  EXPECT_EQ(whole.level, ShardLevel::kNone);
  zero2.offload.base = Offload::kCpu, zero2.offload.params = Offload::kCpu;
  EXPECT_EQ(parallel_of_frozen(zero2).axes.level, ShardLevel::kWeights);
  EXPECT_EQ(parallel_of_frozen(zero2).offload.params, Offload::kNone);
}

}  // namespace
}  // namespace sftrun::config
