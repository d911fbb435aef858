#include <algorithm>

#include "blocks/tower_rows.h"

/// The norm after the tower's layers, and the mergers: the last one, and those of DeepStack (run_mergers in
/// src/layers/tower/tower_pass.cpp).
namespace sftrun::plan::tower_mergers {
namespace {

struct MergerBytes {
  int64_t kept = 0, in_forward = 0, in_backward = 0;
};

/// @param input bytes of the rows that it merges   @param is_kept they are kept already
MergerBytes of_merger(const TowerRows& rows, const spec::Merger& merger, int64_t input,
                      bool is_kept) {
  MergerBytes bytes;
  KeptChain chain(input, is_kept);
  int64_t alive = 0;  // of one expression: norm, merge, norm
  const auto apply = [&](int64_t output, bool reads_input) {
    chain.apply(output, reads_input);
    alive += output;
    bytes.in_forward = std::max(bytes.in_forward, alive);
  };
  if (merger.before.exists()) apply(input, true);
  const int64_t count = rows.features();
  const int64_t width = rows.spec().hidden_size *
                        (merger.merge == spec::PatchMerge::kMean ? 1 : merger.side * merger.side);
  if (merger.merge == spec::PatchMerge::kConcatChannelsFirst) apply(input, false);
  if (merger.merge == spec::PatchMerge::kMean) {
    const int64_t wide =
        rows.rounded(TowerRows::fp32_bytes(rows.patches(), rows.spec().hidden_size));
    bytes.in_forward =
        std::max(bytes.in_forward, alive + wide + 2 * TowerRows::fp32_bytes(count, width));
    bytes.in_backward = rows.bytes(count, width) + wide + input;
    apply(rows.bytes(count, width), false);
  }
  if (merger.after.exists()) apply(rows.bytes(count, width), true);
  for (const spec::Merger::Step& step : merger.steps) {
    const spec::TowerLinear& linear = step.linear;
    const int64_t output = rows.bytes(count, linear.out_features), before = chain.current();
    chain.apply(output, rows.trains(linear.module));
    bytes.kept += rows.low_rank(linear.module, count);
    bytes.in_forward = std::max(bytes.in_forward, before + output + rows.unpacked(linear));
    const int64_t gradient =
        std::max(rows.matrix_gradient(linear.module, linear), before + rows.unpacked(linear));
    bytes.in_backward = std::max(bytes.in_backward, output + gradient);
    if (!step.gelu) continue;
    chain.apply(output, true);
    bytes.in_forward = std::max(bytes.in_forward, 2 * output);
    bytes.in_backward = std::max(bytes.in_backward, 2 * output);
  }
  bytes.kept += chain.kept();
  bytes.in_backward = std::max(bytes.in_backward, 2 * input);  // through the norm
  return bytes;
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const TowerRows rows(step);
  const spec::VisionSpec& spec = rows.spec();
  const bool has_norm = spec.uses_post_norm && spec.post_norm.exists();
  const bool drops = !spec.class_token.empty() && spec.drops_class_token;
  const int64_t all = rows.hidden(),
                input = drops ? rows.bytes(rows.patches(), spec.hidden_size) : all;
  const int64_t copies = (has_norm ? all : 0) + (drops ? input : 0);
  const int64_t features = rows.bytes(rows.features(), step.arch.hidden_size);
  const int64_t orders = spec.window_side > 0 ? features : 0;
  const MergerBytes last = of_merger(rows, spec.merger, input, !has_norm && !drops);
  TrainingBytes bytes{.kept = last.kept,
                      .in_forward = copies + std::max(last.in_forward, features + orders),
                      .in_backward = last.in_backward};
  int64_t done = features;
  for (const spec::Merger& merger : spec.deepstack) {
    const MergerBytes of = of_merger(rows, merger, all, /*is_kept=*/true);
    bytes.kept += of.kept;
    bytes.in_forward = std::max(bytes.in_forward, copies + done + of.in_forward);
    bytes.in_backward = std::max(bytes.in_backward, of.in_backward);
    done += features;
  }
  bytes.in_backward += done;  // gradients of all outputs
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  return {.pass = training(pass, layer).in_forward};
}

}  // namespace

const BlockRow kRow{.name = "tower_mergers", .training = training, .generation = generation};

}  // namespace sftrun::plan::tower_mergers
