#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/images/processor.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/best_evaluation.h"
#include "sftrun/train/loss_scale.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/safetensors.h"

/// Training state on disk. checkpoints/step-000100/ holds the trained parameters (adapters in
/// PEFT's layout), the optimizer state and state.json. A checkpoint is written under a temporary
/// name and renamed when complete, so a checkpoint under its final name is complete.
namespace sftrun::train {

/// A build of this program that computed steps of a run.
struct Build {
  std::string version, id;
  int64_t from_step = 0;  ///< steps that were done before
  bool is_same_program(const Build& other) const {
    return version == other.version && id == other.id;
  }
};
nlohmann::ordered_json to_json(const std::vector<Build>& builds);

struct TrainState {
  int64_t step = 0;  ///< optimizer steps done; random numbers are derived from it
  nlohmann::ordered_json data_position;  ///< see Batches::position
  nlohmann::ordered_json identity;       ///< see identity.h
  double trained_seconds = 0;            ///< over all parts of a run that was resumed
  int64_t tokens = 0;
  int64_t rendered_at_unix_s = 0;  ///< the time passed to the chat template (strftime_now)
  std::optional<LossScale::State> loss_scale;  ///< set for runs in fp16
  std::optional<BestState> best;               ///< set if the run looks for its best evaluation
  /// The run was stopped in the evaluation after this step: it is repeated.
  bool evaluation_due = false;
  double answer_seconds = 0;  ///< time in which evaluations generated answers
  std::vector<Build> builds;  ///< of the run, in order; older versions did not keep them

  int64_t best_step() const { return best ? best->step : 0; }  ///< 0: none
};

/// Names and shapes of the divided tensors of a checkpoint, by kind ("trainable", "optimizer").
struct DividedTensor {
  std::string name;
  std::vector<int64_t> shape;
};
using DividedShapes = std::map<std::string, std::vector<DividedTensor>>;

/// The tensors of a checkpoint. Each is produced when it is written.
struct CheckpointContents {
  /// The adapter in PEFT's form; empty when base weights are trained.
  std::vector<weights::TensorToWrite> adapter;
  /// PiSSA: the initial A and B; else empty.
  std::vector<weights::TensorToWrite> principal_parts;
  /// The trained parameters, where the adapter's file does not hold them; else empty.
  std::vector<weights::TensorToWrite> trainable;
  std::vector<weights::TensorToWrite> optimizer;

  std::optional<std::string> chat_template;             ///< of the run; nullopt: the model's own
  nlohmann::ordered_json template_variables;            ///< of the run; null or empty: none
  images::ImageCaps image_caps;                         ///< of the run's images
  std::vector<FeatureProjector> projectors;             ///< of the model
  spec::ArchSpec arch;                                  ///< whose head of scores has names
  std::optional<weights::EmbeddingSettings> embedding;  ///< of the run; nullopt: it embeds nothing

  /// Where base weights train and ranks own parts of them: each rank writes its own part, and
  /// nothing is put together. Then `trainable` and `optimizer` have what this rank writes: flat
  /// ranges of tensors, none if another rank has copies of the same values.
  struct Parts {
    int rank = 0;
    DividedShapes shapes;  ///< of all tensors, which the parts of the ranks must cover
  };
  std::optional<Parts> parts;

  /// On a rank that does not write: produces the tensors together with the rank that does.
  void take_part() const;
  /// Copies the values to the host's memory, so that they can be written while the run goes on. A
  /// rank that does not write calls `take_part` at the same time.
  void hold();
  void release();          ///< frees the values that are held, after writing
  uint64_t bytes() const;  ///< size of the values, which `hold` takes
};
/// @param is_adapter whether an adapter is trained
/// @param format whole: no parts
/// @param strategy outlives the contents, unless they are held
CheckpointContents checkpoint_contents(model::Decoder& decoder, parallel::Strategy& strategy,
                                       const Optimizer& optimizer, bool is_adapter,
                                       config::CheckpointFormat format = {});

class CheckpointStore {
 public:
  explicit CheckpointStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  /// The newest checkpoint whose files are all intact; warns of newer ones that are not.
  /// @throws DataError if there are checkpoints and none is intact: a silent new start would
  /// overwrite data that may be recoverable
  std::optional<std::filesystem::path> latest() const;
  std::filesystem::path path_of(int64_t step) const;
  /// Step of the newest checkpoint up to a step, intact or not; 0: none.
  int64_t newest_step(int64_t up_to) const;
  /// Whether there is a folder with a checkpoint's name here, intact or not.
  bool holds_any() const;
  /// Renames the checkpoints of later steps to abandoned-step-…, when a run restarts from an
  /// earlier one.
  void set_later_aside(int64_t step) const;
  /// Called before training starts. @throws DeviceError when nothing can be written here
  void require_writable() const;
  /// Removes the temporary folders that a crash during `save` left behind.
  void remove_leftovers() const;
  /// Removes the run's oldest checkpoints beyond `total_limit`. That of the best evaluation stays, as
  /// one of them; with a limit of 1 beside the newest. What the run did not write stays: folders of
  /// later steps, without a readable state.json, or of another run.
  /// @param newest of the newest checkpoint, which stays
  void keep_newest(std::optional<int64_t> total_limit, const TrainState& newest) const;
  /// Divided checkpoints: every rank writes its part, then rank 0 saves.   @pre contents.parts
  void write_parts_of(const CheckpointContents& contents, int64_t step) const;
  /// Writes step-<step>, then removes the oldest checkpoints beyond `total_limit` (`keep_newest`).
  /// Something else of this name is renamed to abandoned-step-….
  /// @param adapter the PEFT configuration when an adapter is trained; nullopt when base weights
  /// are
  void save(const CheckpointContents& contents,
            const std::optional<weights::AdapterConfig>& adapter, const TrainState& state,
            int64_t optimizer_steps, std::optional<int64_t> total_limit) const;

 private:
  std::filesystem::path directory_;
};

/// Verifies the fingerprints of all files. @throws DataError if a file is missing, truncated or
/// changed
void verify_checkpoint(const std::filesystem::path& checkpoint);
/// @throws DataError if state.json is missing or damaged, or another file is missing or has the
/// wrong size
TrainState read_train_state(const std::filesystem::path& checkpoint);
/// Loads the parameters that this rank owns, and leaves the optimizer as it is.
/// @throws as `restore`
void restore_parameters(const std::filesystem::path& checkpoint, parallel::Strategy& strategy);
/// The file with the principal parts that PiSSA subtracted from the base when the run began. A
/// resumed run subtracts the same ones.
std::filesystem::path principal_parts_of(const std::filesystem::path& checkpoint);
/// Loads the parameters and the optimizer state that this rank owns.
/// @throws DataError naming file and tensor if the checkpoint does not fit
void restore(const std::filesystem::path& checkpoint, parallel::Strategy& strategy,
             Optimizer& optimizer);

}  // namespace sftrun::train
