#include "layer_bytes.h"

#include <algorithm>

#include "adapter_bytes.h"
#include "sftrun/core/strings.h"

namespace sftrun::plan {
namespace {

/// The two halves of a layer.
struct LayerHalves {
  TrainingBytes mixer, feed_forward;
};

/// Blocks side by side: on a GPU one has freed its memory when the other runs; a CPU's plan adds them.
void add_beside(TrainingBytes& half, const TrainingBytes& block, bool on_gpu) {
  half.kept += block.kept;
  if (on_gpu) {
    half.in_forward = std::max(half.in_forward, block.in_forward);
    half.in_backward = std::max(half.in_backward, block.in_backward);
  } else {
    half.in_forward += block.in_forward;
    half.in_backward += block.in_backward;
  }
}

/// What the residuals add: gradients of the layer's output and of its middle, which is kept; outputs
/// before their norms.
void add_residuals(LayerHalves& halves, const StepContext& step) {
  const int64_t hidden = step.rows(step.arch.hidden_size);
  halves.mixer.in_backward += 2 * hidden;
  if (step.has_dora || step.has_dropout)
    halves.mixer.in_backward += hidden;  // the input after dropout
  halves.feed_forward.in_backward += hidden;
  halves.feed_forward.kept += hidden;
  if (step.arch.norms == spec::NormPlacement::kBefore) return;
  for (TrainingBytes* half : {&halves.mixer, &halves.feed_forward})
    half->kept += hidden, half->in_backward += hidden;
}

LayerHalves layer_halves(const StepContext& step, int64_t layer) {
  LayerHalves halves;
  for (const spec::BlockTensors& block : spec::layer_blocks(step.arch, layer)) {
    TrainingBytes& half = block.is_mixer ? halves.mixer : halves.feed_forward;
    add_beside(half, block_row(block.block).training(step, layer), step.shape.on_gpu);
    half.kept += step.rows(adapter_columns(step, layer, block));
  }
  add_residuals(halves, step);
  return halves;
}

}  // namespace

KeptBytes kept_bytes(const StepContext& step, int64_t layer, config::Checkpointing again) {
  const auto [mixer, feed_forward] = layer_halves(step, layer);
  const int64_t hidden = step.rows(step.arch.hidden_size);
  // A block that is computed again keeps its input.
  const bool whole = again == config::Checkpointing::kLayer,
             drops_mixer = whole || again == config::Checkpointing::kAttention,
             drops_feed_forward = whole || again == config::Checkpointing::kMlp;
  const int64_t of_mixer = drops_mixer ? mixer.kept : 0,
                of_feed_forward = drops_feed_forward ? feed_forward.kept - (whole ? 0 : hidden) : 0;
  const int64_t saved = mixer.kept + feed_forward.kept - of_mixer - of_feed_forward;
  // The state of the feed-forward block is freed before the mixer's backward pass.
  const int64_t freed = feed_forward.kept - of_feed_forward;
  const int64_t in_feed_forward =
                    of_feed_forward + feed_forward.in_backward + (whole ? of_mixer : 0),
                in_mixer = of_mixer + mixer.in_backward - (whole ? 0 : freed);
  // The block is computed again while the gradient of its output waits.
  const int64_t again_feed_forward = of_feed_forward + feed_forward.in_forward +
                                     (whole ? of_mixer : 0) + (drops_feed_forward ? hidden : 0);
  return {.between = hidden + saved,
          .in_backward = std::max({in_feed_forward, again_feed_forward, in_mixer})};
}

int64_t pass_bytes(const StepContext& pass, int64_t layer) {
  int64_t bytes = pass.rows(3 * pass.arch.hidden_size);  // input, middle, output
  for (const spec::BlockTensors& block : spec::layer_blocks(pass.arch, layer))
    bytes += block_row(block.block).generation(pass, layer).pass;
  return bytes;
}

std::string layer_kind(const spec::ArchSpec& arch, int64_t layer) {
  std::string mixer;
  std::vector<std::string> feed_forward;
  for (const spec::BlockTensors& block : spec::layer_blocks(arch, layer)) {
    const std::string title(block_row(block.block).title);
    if (block.is_mixer)
      mixer = title;
    else if (!title.empty())
      feed_forward.push_back(title);
  }
  std::sort(feed_forward.begin(), feed_forward.end());
  return mixer + ", " + join(feed_forward, " and ");
}

}  // namespace sftrun::plan
