#include "sftrun/train/checkpoint_writer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temporary_directory.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

weights::TensorToWrite tensor(const std::string& name, const at::Tensor& values) {
  return {name, DType::kF32, values.sizes().vec(), [values](void* destination) {
            at::from_blob(destination, values.sizes()).copy_(values);
          }};
}

/// A run trains `values`, and its checkpoint has them whole.
class CheckpointWriting : public ::testing::Test {
 protected:
  CheckpointToWrite checkpoint(int64_t step) {
    CheckpointToWrite checkpoint;
    checkpoint.contents.trainable = {tensor("weight", values_)};
    checkpoint.contents.optimizer = {tensor("exp_avg.weight", values_ * 2)};
    checkpoint.state.step = step;
    checkpoint.state.identity = {{"model", "m"}};
    checkpoint.on_written = [this, step] { written_.push_back(step); };
    return checkpoint;
  }
  at::Tensor saved(int64_t step) const {
    const weights::SafetensorsFile file(store_.path_of(step) / "trainable.safetensors");
    return at::from_blob(const_cast<std::byte*>(file.find("weight")->bytes.data()), {4}).clone();
  }

  test::TemporaryDirectory directory_;
  CheckpointStore store_{directory_.path()};
  parallel::Communicator alone_;
  at::Tensor values_ = at::arange(4, at::kFloat);
  std::vector<int64_t> written_;
};

TEST_F(CheckpointWriting, HasTheValuesOfItsStepWhileTrainingGoesOn) {
  CheckpointWriter writer(store_, alone_);
  for (const int64_t step : {1, 2, 3}) {
    writer.begin(checkpoint(step));
    values_.add_(10);  // the next step
    writer.finish();
    verify_checkpoint(store_.path_of(step));
    EXPECT_TRUE(
        at::equal(saved(step), at::arange(4, at::kFloat) + 10 * (static_cast<double>(step) - 1)));
  }
  EXPECT_EQ(written_, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(store_.newest_step(INT64_MAX), 3);
}

TEST_F(CheckpointWriting, IsCompleteWhenTheWriterIsGone) {
  {
    CheckpointWriter writer(store_, alone_);
    writer.begin(checkpoint(5));
  }
  verify_checkpoint(store_.path_of(5));
}

/// A full disk, a folder that was removed: the run learns it at its next step.
TEST_F(CheckpointWriting, AnErrorEndsTheRun) {
  std::ofstream(directory_.path() / "file") << "in the way";
  const CheckpointStore nowhere(directory_.path() / "file" / "checkpoints");
  CheckpointWriter writer(nowhere, alone_);
  writer.begin(checkpoint(1));
  writer.wait();
  test::expect_error<DeviceError>([&] { writer.has_written_part(); },
                                  {"cannot make a folder for the checkpoint", "file"});
  EXPECT_FALSE(writer.has_written_part());  // told once
  writer.begin(checkpoint(2));
  test::expect_error<DeviceError>([&] { writer.finish(); }, {"cannot make a folder"});
  EXPECT_TRUE(written_.empty());
}

/// What one of two ranks writes of "weight" [10].
CheckpointToWrite share_of(int rank, const at::Tensor& values, int64_t step) {
  const int64_t begin = rank == 0 ? 0 : 6;
  const at::Tensor part = values.slice(0, begin, rank == 0 ? 6 : 10);
  CheckpointToWrite checkpoint;
  checkpoint.contents.parts = {.rank = rank,
                               .shapes = {{"trainable", {{"weight", {10}}}}, {"optimizer", {}}}};
  checkpoint.contents.trainable = {tensor(fmt::format("weight@{}", begin), part)};
  checkpoint.state.step = step;
  checkpoint.state.identity = {{"model", "m"}};
  return checkpoint;
}

/// Rank 0 completes a checkpoint when every rank has told the others that its part is there.
TEST_F(CheckpointWriting, PartsAreCompletedWhenAllRanksHaveWritten) {
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    at::Tensor values = at::arange(10, at::kFloat);
    CheckpointWriter writer(store_, comm);
    writer.begin(share_of(comm.rank(), values, 1));
    values.zero_();
    for (bool all = false; !all;) {
      if (comm.rank() == 0 && !all) {
        EXPECT_EQ(store_.newest_step(INT64_MAX), 0);
      }
      all = true;
      for (const auto& of_rank : comm.all_gather({writer.has_written_part() ? 1.0 : 0.0}))
        all = all && of_rank[0] == 1;
      writer.note_parts(all);
    }
    writer.finish();
    values.fill_(7);
    writer.begin(share_of(comm.rank(), values, 2));  // completed by finish()
    writer.finish();
    writer.write(share_of(comm.rank(), values, 3));
    if (comm.rank() != 0) {
      EXPECT_TRUE(fs::exists(store_.path_of(3)));
    }
  });
  for (const int64_t step : {1, 2, 3}) {
    verify_checkpoint(store_.path_of(step));
    EXPECT_EQ(std::distance(fs::directory_iterator(store_.path_of(step)), fs::directory_iterator()),
              4);  // two parts, parts.json, state.json
  }
}

TEST_F(CheckpointWriting, APartThatCannotBeWrittenFailsItsRank) {
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    std::ofstream(directory_.path() / "file") << "in the way";
    const CheckpointStore own(comm.rank() == 0 ? directory_.path()
                                               : directory_.path() / "file" / "checkpoints");
    CheckpointWriter writer(own, comm);
    writer.begin(share_of(comm.rank(), at::zeros(10), 1));
    writer.wait();
    if (comm.rank() == 0) {
      EXPECT_TRUE(writer.has_written_part());
    } else {
      test::expect_error<DeviceError>([&] { writer.has_written_part(); }, {"cannot make a folder"});
    }
  });
  EXPECT_EQ(store_.newest_step(INT64_MAX), 0);
}

}  // namespace
}  // namespace sftrun::train
