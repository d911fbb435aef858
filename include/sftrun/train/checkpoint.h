#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sftrun/model/decoder.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/peft.h"

/// Training state on disk: checkpoints/step-000100/ holds the trained parameters (PEFT's layout for
/// adapters), the optimizer's moments and state.json. A checkpoint is written under another name
/// and renamed when complete, so one that exists is whole.
namespace sftrun::train {

struct TrainState {
  int64_t step = 0;  ///< optimizer steps done; data position and random numbers are functions of it
  nlohmann::ordered_json identity;  ///< see identity.h
  double trained_seconds = 0;       ///< over all parts of the run
  int64_t tokens = 0;
  int64_t rendered_at_unix_s = 0;  ///< what the chat template saw as the time (strftime_now)
};

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// The newest complete checkpoint.
  std::optional<std::filesystem::path> latest() const;
  /// Removes what a crash while saving left behind.
  void remove_leftovers() const;
  /// Writes step-<step>, then removes the oldest beyond `total_limit`.
  /// @param adapter the PEFT configuration when an adapter is trained; nullopt for base weights
  void save(model::Decoder& decoder, AdamW& optimizer,
            const std::optional<weights::AdapterConfig>& adapter, const TrainState& state,
            std::optional<int64_t> total_limit) const;

 private:
  std::filesystem::path directory_;
};

/// @throws DataError naming file and tensor when the checkpoint is not whole or does not fit the
/// decoder.
TrainState read_train_state(const std::filesystem::path& checkpoint);
void restore(const std::filesystem::path& checkpoint, model::Decoder& decoder, AdamW& optimizer);

}  // namespace sftrun::train
