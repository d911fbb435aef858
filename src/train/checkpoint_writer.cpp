#include "sftrun/train/checkpoint_writer.h"

#include <chrono>

#include "sftrun/core/error.h"

namespace sftrun::train {
namespace {

void save_checkpoint(const CheckpointStore& store, const CheckpointToWrite& checkpoint) {
  store.save(checkpoint.contents, checkpoint.adapter, checkpoint.state, checkpoint.optimizer_steps,
             checkpoint.total_limit);
  if (checkpoint.on_written) checkpoint.on_written();
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointStore store, parallel::Communicator& comm)
    : store_(std::move(store)), comm_(comm) {}

void CheckpointWriter::begin(CheckpointToWrite checkpoint) {
  SFTRUN_CHECK(!task_.valid() && !waits_for_parts_);
  checkpoint_ = std::move(checkpoint);
  CheckpointContents& contents = checkpoint_.contents;
  const bool is_main = comm_.rank() == 0;
  waits_for_parts_ = contents.parts.has_value();
  if (!is_main && !waits_for_parts_) return contents.take_part();
  contents.hold();
  if (!waits_for_parts_) return save_in_background();
  task_ = std::async(std::launch::async, [this] {
    store_.write_parts_of(checkpoint_.contents, checkpoint_.state.step);
    checkpoint_.contents.release();
  });
}

void CheckpointWriter::write(CheckpointToWrite checkpoint) {
  const CheckpointContents& contents = checkpoint.contents;
  const bool is_main = comm_.rank() == 0;
  const int64_t step = checkpoint.state.step;
  if (contents.parts) {
    store_.write_parts_of(contents, step);
    comm_.barrier(fmt::format("save-parts-{}", step));
  }
  if (is_main) {
    save_checkpoint(store_, checkpoint);
  } else if (!contents.parts) {
    contents.take_part();
  }
  comm_.barrier(fmt::format("save-{}", step));
}

void CheckpointWriter::save_in_background() {
  task_ = std::async(std::launch::async, [this] {
    save_checkpoint(store_, checkpoint_);
    checkpoint_.contents.release();
  });
}

void CheckpointWriter::rethrow_error() {
  if (task_.valid() && task_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    task_.get();
}

bool CheckpointWriter::has_written_part() {
  rethrow_error();
  return waits_for_parts_ && !task_.valid();
}

void CheckpointWriter::note_parts(bool all_written) {
  if (!waits_for_parts_ || !all_written) return;
  waits_for_parts_ = false;
  if (comm_.rank() == 0) save_in_background();
}

void CheckpointWriter::wait() const {
  if (task_.valid()) task_.wait();
}

void CheckpointWriter::finish() {
  if (task_.valid()) task_.get();
  if (!waits_for_parts_) return;
  waits_for_parts_ = false;
  comm_.barrier(fmt::format("save-parts-{}", checkpoint_.state.step));
  if (comm_.rank() == 0) save_checkpoint(store_, checkpoint_);
}

}  // namespace sftrun::train
