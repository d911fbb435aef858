#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sftrun/model/decoder.h"
#include "sftrun/train/loss_scale.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/peft.h"

/// Training state on disk: checkpoints/step-000100/ holds the trained parameters (PEFT's layout for
/// adapters), the optimizer's moments and state.json. A checkpoint is written under another name
/// and renamed when complete, so one that exists is whole.
namespace sftrun::train {

struct TrainState {
  int64_t step = 0;  ///< optimizer steps done; random numbers are functions of it
  nlohmann::ordered_json data_position;  ///< see Batches::position
  nlohmann::ordered_json identity;       ///< see identity.h
  double trained_seconds = 0;            ///< over all parts of the run
  int64_t tokens = 0;
  int64_t rendered_at_unix_s = 0;  ///< what the chat template saw as the time (strftime_now)
  std::optional<LossScale::State> loss_scale;  ///< of a run in fp16
};

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// The newest checkpoint that is whole, byte for byte; warns of newer ones that are not.
  /// @throws DataError where there are checkpoints and none is whole: starting afresh in silence
  /// would overwrite what may be rescued
  std::optional<std::filesystem::path> latest() const;
  std::filesystem::path path_of(int64_t step) const;
  /// Whether anything here is named as a checkpoint, whole or not.
  bool holds_any() const;
  /// Renames checkpoints of later steps to abandoned-step-…: a run went back to an earlier one.
  void set_later_aside(int64_t step) const;
  /// Before a run has anything to lose. @throws DeviceError when nothing can be written here
  void require_writable() const;
  /// Removes what a crash while saving left behind.
  void remove_leftovers() const;
  /// Removes the oldest beyond `total_limit`.
  void keep_newest(std::optional<int64_t> total_limit) const;
  /// Writes step-<step>, then removes the oldest beyond `total_limit`.
  /// @param adapter the PEFT configuration when an adapter is trained; nullopt for base weights
  void save(model::Decoder& decoder, Optimizer& optimizer,
            const std::optional<weights::AdapterConfig>& adapter, const TrainState& state,
            std::optional<int64_t> total_limit) const;

 private:
  std::filesystem::path directory_;
};

/// Reads every byte of the checkpoint. @throws DataError if a file is missing, cut or changed.
void verify_checkpoint(const std::filesystem::path& checkpoint);
/// @throws DataError naming file and tensor when the checkpoint is not whole or does not fit the
/// decoder.
TrainState read_train_state(const std::filesystem::path& checkpoint);
/// The file with what PiSSA took out of the base when the run began: a decoder that resumes takes
/// out the same.
std::filesystem::path principal_parts_of(const std::filesystem::path& checkpoint);
void restore(const std::filesystem::path& checkpoint, model::Decoder& decoder,
             Optimizer& optimizer);

}  // namespace sftrun::train
