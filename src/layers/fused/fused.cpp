#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>

#include "fused/branch.h"
#include "fused/feed_forward.h"
#include "fused/fused_head.h"
#include "linear/fused_norms.h"
#include "sftrun/core/error.h"
#include "sftrun/layers/backend.h"

namespace sftrun::layers {
namespace {

/// The blocks of a layer, in their order.
struct FusedBlocks {
  FusedBlocks(const Layer& layer, const BatchContext& batch)
      : mixer(layer.mixer->pass(layer, batch)), feed_forward(layer, batch), branch(layer, batch) {}
  std::unique_ptr<MixerPass> mixer;
  FeedForwardBlock feed_forward;
  BranchBlock branch;
};

/// A block that is recomputed keeps its input alone, and runs again before its backward pass. Its
/// dropout is the same then, as that is a function of the step, the module and the place.
class FusedRun final : public LayerRun {
 public:
  FusedRun(const Layer& layer, const BatchContext& batch)
      : blocks_(layer, batch), recomputed_(layer.recomputed) {}

  at::Tensor forward(const at::Tensor& x) {
    const bool repeats_mixer = recomputed_ == Recomputed::kMixer,
               repeats_feed_forward = recomputed_ == Recomputed::kFeedForward;
    const at::Tensor middle = blocks_.mixer->forward(x, /*keeps=*/!repeats_mixer);
    if (repeats_mixer) input_ = x;
    if (repeats_feed_forward) input_ = middle;
    return blocks_.branch.forward(
        blocks_.feed_forward.forward(middle, repeats_feed_forward ? nullptr : &feed_forward_),
        &branch_);
  }

  at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) override {
    const at::NoGradGuard no_grad;
    const bool needs_middle = needs_input_grad || blocks_.mixer->needs_gradient();
    const at::Tensor after = blocks_.branch.backward(std::move(branch_), grad);
    if (recomputed_ == Recomputed::kFeedForward)
      blocks_.feed_forward.forward(std::exchange(input_, {}), &feed_forward_);
    const at::Tensor middle =
        blocks_.feed_forward.backward(std::move(feed_forward_), after, needs_middle);
    if (!needs_middle) return {};
    if (recomputed_ == Recomputed::kMixer)
      blocks_.mixer->forward(std::exchange(input_, {}), /*keeps=*/true);
    return blocks_.mixer->backward(middle, needs_input_grad);
  }

 private:
  FusedBlocks blocks_;
  FeedForwardRun feed_forward_;
  BranchRun branch_;
  Recomputed recomputed_;
  at::Tensor input_;  // of the block that is recomputed
};

at::Tensor fused_layer_forward(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                               std::unique_ptr<LayerRun>* run) {
  const at::NoGradGuard no_grad;
  if (run == nullptr) {
    FusedBlocks blocks(layer, batch);
    return blocks.branch.forward(
        blocks.feed_forward.forward(blocks.mixer->forward(x, /*keeps=*/false), nullptr), nullptr);
  }
  SFTRUN_CHECK(batch.adapters);
  auto kept = std::make_unique<FusedRun>(layer, batch);
  at::Tensor y = kept->forward(x);
  *run = std::move(kept);
  return y;
}

}  // namespace

at::Tensor generate_layer(const Layer& layer, const at::Tensor& x, const GenerationPass& pass) {
  const at::NoGradGuard no_grad;
  FeedForwardBlock feed_forward(layer, pass.context);
  BranchBlock branch(layer, pass.context);
  return branch.forward(feed_forward.forward(layer.mixer->generate(layer, x, pass), nullptr),
                        nullptr);
}

const Backend& fused_backend() {
  static const Backend backend{"fused",
                               fused_layer_forward,
                               fused_head_loss,
                               fused_distillation_loss,
                               fused_label_losses,
                               fused_score_loss,
                               fused_embedding_loss};
  return backend;
}

}  // namespace sftrun::layers
