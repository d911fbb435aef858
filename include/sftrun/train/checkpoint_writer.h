#pragma once

#include <functional>
#include <future>
#include <optional>

#include "sftrun/parallel/communicator.h"
#include "sftrun/train/checkpoint.h"

/// Writes checkpoints, also while training goes on (docs/decisions/0042-checkpoints-in-the-background.md).
namespace sftrun::train {

/// A checkpoint to write.
struct CheckpointToWrite {
  CheckpointContents contents;
  std::optional<weights::AdapterConfig> adapter;  ///< nullopt when base weights are trained
  TrainState state;
  int64_t optimizer_steps = 0;
  std::optional<int64_t> total_limit;
  std::function<void()> on_written;  ///< called on rank 0, perhaps by another thread
};

/// Writes one checkpoint after the other. Every rank makes the same calls in the same order. What
/// another thread writes does not communicate: that every rank has written its part travels with
/// the values of a step (`has_written_part`, `note_parts`).
class CheckpointWriter {
 public:
  CheckpointWriter(CheckpointStore store, parallel::Communicator& comm);
  /// Waits for the files that this rank is writing. A whole checkpoint is then complete.
  ~CheckpointWriter() = default;

  /// Writes a checkpoint from memory of its own. Returns when it has a copy of the values.
  /// @pre finish() has returned
  void begin(CheckpointToWrite checkpoint);
  /// Writes a checkpoint; returns on every rank when it is complete.   @pre finish() has returned
  void write(CheckpointToWrite checkpoint);
  /// Whether this rank has written its part of the checkpoint that was begun.
  /// @throws the error of writing, on the rank on which it happened
  bool has_written_part();
  /// @param all_written whether `has_written_part` was true on every rank. All ranks give the same
  void note_parts(bool all_written);
  /// Waits for the files that this rank is writing, whether they succeed or not.
  void wait() const;
  /// Waits until the checkpoint that was begun is complete; on other ranks than 0, until their parts
  /// are.   @throws as has_written_part
  void finish();

 private:
  void rethrow_error();
  void save_in_background();

  CheckpointStore store_;
  parallel::Communicator& comm_;
  CheckpointToWrite checkpoint_;
  bool waits_for_parts_ = false;  // of all ranks, before rank 0 completes the checkpoint
  std::future<void> task_;        // its destructor waits; declared after what the task reads
};

}  // namespace sftrun::train
