#pragma once

#include <functional>
#include <memory>

#include "rank.h"
#include "sftrun/config/run_config.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/mesh_groups.h"
#include "sftrun/parallel/sequence_group.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/parallel/tensor_group.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::engine {

/// What this rank has of a model, as `parallel` says, and the groups in which it communicates.
class ModelDivision {
 public:
  /// All ranks call it.   @param config with resolved axes   @param comm must outlive this object
  ModelDivision(parallel::Communicator& comm, const config::RunConfig& config, at::Device device);

  const parallel::Mesh& mesh() const { return groups_.mesh(); }
  parallel::MeshGroups& groups() { return groups_; }
  /// Chooses the part of each matrix.
  /// @throws ConfigError if the model, or the format of its frozen weights, cannot be divided
  void divide_matrices(const weights::Checkpoint& checkpoint, const config::RunConfig& config);
  /// What the options of the decoder say of the part that is loaded. They refer to this object.
  /// @pre divide_matrices
  void apply_to(model::DecoderOptions& options, const spec::ArchSpec& arch,
                const config::RunConfig& config);
  /// The ranks that have the other parts of the matrices; null: this one has all.   @pre apply_to
  const parallel::TensorGroup* tensor_group() const { return tensor_group_.get(); }
  /// null: this rank keeps whole units on its device; also when the strategy has them.
  const parallel::UnitShards* shards() const { return shards_.get(); }
  /// Call it once, when the decoder is loaded. All ranks call it.
  std::unique_ptr<parallel::Strategy> make_strategy(const config::RunConfig& config,
                                                    model::Decoder& decoder);

 private:
  parallel::MeshGroups groups_;
  std::unique_ptr<parallel::UnitShards> shards_;
  spec::TensorParallel tensor_;
  std::unique_ptr<parallel::TensorGroup> tensor_group_;
  std::unique_ptr<parallel::SequenceGroup> sequence_group_;
};

/// Loads a part of a model on every rank. A stop of one ends it on all.
/// @param load calls its argument between parts of its work, which throws to end it
/// @return 0, or the exit code of the stop
int load_together(Rank& rank, const ModelDivision& division, at::Device device,
                  const std::function<void(const std::function<void()>& stop_point)>& load);

}  // namespace sftrun::engine
