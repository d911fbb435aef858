#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sftrun/layers/unit.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/micro_batch_run.h"

/// Forward and backward passes over the units of a decoder.
namespace sftrun::model {

/// A contiguous range of units of a decoder: all of them, or one stage of a pipeline. It calls the
/// hooks for each unit that a pass uses; which units these are does not depend on the micro-batch.
/// A stage of a pipeline receives its input from the stage before and sends its output to the next
/// one, in the backward pass the gradients the other way. All stages call the same functions with the
/// same micro-batches; those without the head return losses of zero.
class Stage {
 public:
  /// All units.   @param hooks must outlive the stage; null: none
  explicit Stage(Decoder& decoder, layers::UnitHooks* hooks = nullptr);
  /// The units that the decoder holds (`DecoderOptions::held`).
  /// @param links to the stages before and after; null if these are all units. Must outlive the stage.
  /// @throws ConfigError if layers of different stages share state beside the hidden states: keys
  /// of other layers, per-layer inputs
  Stage(Decoder& decoder, layers::UnitHooks* hooks, layers::StageLinks* links);

  bool has_embedding() const { return units_.contains(decoder_.embedding_unit()); }
  bool has_head() const { return units_.contains(decoder_.head_unit()); }
  bool has_all_units() const { return has_embedding() && has_head(); }
  /// Stages of the pipeline that follow this one.
  int64_t num_stages_after() const { return links_ == nullptr ? 0 : links_->num_stages_after(); }
  Decoder& decoder() const { return decoder_; }
  /// What the passes of the reference model read: the base without adapters, or, where it is kept,
  /// the start.
  PassValues reference_values() const {
    return hooks_ != nullptr && hooks_->keeps_start() ? PassValues::kStart : PassValues::kBase;
  }

  /// The units before the head; sets `run.hidden` if the head follows.
  void forward(MicroBatchRun& run) const;
  /// The same of several micro-batches.   @pre all units
  void forward(MicroBatchRuns runs) const;
  /// The head's loss and, if the run trains, its backward pass, which sets `run.grad`.
  /// @return sum of token losses, each times its row's factor, not scaled: fp64 scalar on the device, without synchronisation; 0 if
  /// another stage has the head
  at::Tensor loss(MicroBatchRun& run) const;
  std::vector<at::Tensor> losses(MicroBatchRuns runs) const;
  /// -log p of the label of each labelled row [N] fp32, without gradients; zeros if another stage has
  /// the head. `loss` may follow.
  at::Tensor label_losses(const MicroBatchRun& run) const;
  /// What the model says of each labelled row as a teacher (`layers::top_tokens`); nullopt if another
  /// stage has the head, or the micro-batch is empty. Without gradients.
  std::optional<layers::TeacherTargets> top_tokens(const MicroBatchRun& run, int64_t k,
                                                   int64_t num_tokens, double temperature) const;
  /// The weights of the labels that are the most likely token, summed: fp64 scalar on the device; 0 if
  /// another stage has the head. The logits of a few rows are in memory at a time.
  at::Tensor correct_weight(const MicroBatchRun& run) const;
  /// The backward pass of the units before the head; adds to the parameters' gradients.
  void backward(MicroBatchRun& run) const;
  /// The same of several micro-batches, the last of which completes the gradients.   @pre all units
  void backward(MicroBatchRuns runs) const;

  /// forward, loss and backward of one micro-batch.   @pre all units
  at::Tensor forward_backward(const PackedBatch& batch, const PassOptions& options) const;
  /// Calls `gradients_ready` for each unit, for passes that ran without this stage (CUDA graphs).
  void report_gradients() const;

  // Without gradients.
  /// Sum of token losses by their weights: fp64 scalar on the device.
  at::Tensor loss(const PackedBatch& batch) const;
  /// -log p of the label of each labelled row [N] fp32.
  at::Tensor token_losses(const PackedBatch& batch) const;
  /// Logits of the given rows [N, vocab] in the compute dtype.   @pre all units
  at::Tensor logits(const PackedBatch& batch, const at::Tensor& rows) const;

 private:
  template <typename Body>
  void with_unit(int64_t unit, layers::UnitPass pass, Body&& body) const;
  template <typename Body>
  void for_layers(layers::UnitPass pass, Body&& body) const;
  /// Runs `body` for each micro-batch that is not empty, between the hooks of a unit.
  template <typename Body>
  void for_runs(MicroBatchRuns runs, int64_t unit, layers::UnitPass pass, Body&& body) const;
  at::Tensor no_loss() const;
  void gradients_ready(const MicroBatchRun& run, int64_t unit) const;

  Decoder& decoder_;
  layers::UnitHooks* hooks_;
  layers::StageLinks* links_;
  layers::UnitRange units_;
  std::shared_ptr<const InputStreams> input_streams_;  // null: inputs stay on the device
};

}  // namespace sftrun::model
