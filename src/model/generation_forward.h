#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "generation_inputs.h"
#include "sftrun/layers/copy_ranks.h"
#include "sftrun/model/unit_use.h"

namespace sftrun::model {

/// The forward pass of generation through the units that this rank has. A stage of a pipeline receives
/// its input from the stage before and sends its output to the next one.
class GenerationForward {
 public:
  /// @param ranks that have the model together; null: this one has all units
  GenerationForward(Decoder& decoder, layers::CopyRanks* ranks)
      : decoder_(decoder), ranks_(ranks) {}

  bool has_head() const { return decoder_.held_units().contains(decoder_.head_unit()); }
  /// Embedding and layers; adds keys and values to the caches.
  /// @return [T, hidden] output of the last layer; undefined if the next stage receives it
  at::Tensor run(GenerationInputs& inputs,
                 std::span<const std::unique_ptr<layers::LayerCache>> caches);
  /// Runs `body` where the weights of the head are in memory.   @pre has_head()
  template <typename Body>
  void with_head(Body&& body) {
    with_unit(decoder_.head_unit(), body);
  }
  /// A pass without tokens, for the ranks that gather this one's shards.
  void run_nothing();

 private:
  layers::UnitHooks* hooks() const { return ranks_ == nullptr ? nullptr : ranks_->hooks(); }
  template <typename Body>
  void with_unit(int64_t unit, Body&& body) {
    use_unit(decoder_, hooks(), unit, layers::UnitPass::kForward, body);
  }
  at::Tensor input(const GenerationInputs& inputs, layers::BatchContext& context);
  void run_tower(const PackedImages* images);
  /// @return the rows of each
  std::vector<at::Tensor> project(const std::vector<PackedFeatures>& features);

  Decoder& decoder_;
  layers::CopyRanks* ranks_;
  std::unique_ptr<layers::TowerPass> tower_;  // of the prompts' images in this pass; null: none
};

}  // namespace sftrun::model
