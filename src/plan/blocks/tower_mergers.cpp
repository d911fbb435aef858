#include <algorithm>
#include <ranges>
#include <vector>

#include "blocks/tower_rows.h"

/// The norm after the tower's layers, and the mergers: the last one, and those of DeepStack (run_mergers in
/// src/layers/tower/tower_pass.cpp).
namespace sftrun::plan::tower_mergers {
namespace {

/// One merger, from the rows that it merges to rows of the text.
class MergerWalk {
 public:
  MergerWalk(const TowerRows& rows, int64_t input, bool is_kept)
      : rows_(rows), chain_(input, is_kept) {}

  void apply_norm(const spec::TowerNorm& norm) {
    if (!norm.exists()) return;
    const int64_t bytes = chain_.current();
    const int64_t count = bytes / std::max<int64_t>(1, rows_.bytes(1, norm.size));
    stays_with(bytes);
    chain_.apply(bytes, /*reads_input=*/true, rows_.norm_gradient(norm, count));
  }
  /// A copy in another order or with fewer rows.
  void copy(int64_t bytes) {
    stays_with(bytes);
    chain_.apply(bytes, /*reads_input=*/false);
  }
  void merge(const spec::Merger& merger) {
    alive_ = 0;  // of one expression: norm, merge, norm
    apply_norm(merger.before);
    if (merger.merge == spec::PatchMerge::kConcatChannelsFirst) copy(chain_.current());
    if (merger.merge == spec::PatchMerge::kMean) merge_means();
    apply_norm(merger.after);
    for (const spec::Merger::Step& step : merger.steps) apply_step(step);
  }

  /// Bytes that stay for the mergers after this one: the norm's output, rows without class tokens.
  void hold() { held_ += alive_, alive_ = 0; }
  int64_t held() const { return held_; }
  int64_t in_forward() const { return in_forward_; }
  int64_t kept() const { return chain_.kept(); }
  int64_t in_backward() const { return chain_.in_backward(); }

 private:
  void stays_with(int64_t bytes) {
    alive_ += bytes;
    in_forward_ = std::max(in_forward_, held_ + alive_);
  }
  void merge_means() {
    const int64_t hidden = rows_.spec().hidden_size, count = rows_.features();
    const int64_t wide = TowerRows::fp32_bytes(rows_.patches(), hidden),
                  means = TowerRows::fp32_bytes(count, hidden);
    in_forward_ = std::max(in_forward_, held_ + alive_ + rows_.rounded(wide) + 2 * means);
    alive_ += rows_.bytes(count, hidden);
    chain_.apply(rows_.bytes(count, hidden), /*reads_input=*/false,
                 chain_.current() + rows_.rounded(wide));
  }
  void apply_step(const spec::Merger::Step& step) {
    const spec::TowerLinear& linear = step.linear;
    const int64_t count = rows_.features(), before = chain_.current(),
                  output = rows_.bytes(count, linear.out_features);
    in_forward_ = std::max(in_forward_, held_ + before + output + rows_.unpacked(linear));
    chain_.apply(output, rows_.trains(linear.module),
                 std::max(rows_.matrix_gradient(linear.module, linear, count),
                          before + rows_.unpacked(linear)),
                 rows_.low_rank(linear.module, count));
    if (!step.gelu) return;
    in_forward_ = std::max(in_forward_, held_ + 2 * output);
    chain_.apply(output, /*reads_input=*/true);
  }

  const TowerRows& rows_;
  TowerChain chain_;
  int64_t alive_ = 0, held_ = 0, in_forward_ = 0;
};

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const TowerRows rows(step);
  const spec::VisionSpec& spec = rows.spec();
  const int64_t features = rows.bytes(rows.features(), step.arch.hidden_size);
  MergerWalk last(rows, rows.hidden(), /*is_kept=*/true);
  if (spec.uses_post_norm) last.apply_norm(spec.post_norm);
  if (!spec.class_token.empty() && spec.drops_class_token)
    last.copy(rows.bytes(rows.patches(), spec.hidden_size));
  last.hold();
  last.merge(spec.merger);
  if (spec.window_side > 0) last.copy(features);
  if (!spec.newline.empty()) last.copy(features);
  TrainingBytes bytes{.in_forward = last.in_forward()};
  std::vector<MergerWalk> walks = {last};
  int64_t outputs = features;
  for (const spec::Merger& merger : spec.deepstack) {
    MergerWalk walk(rows, rows.hidden(), /*is_kept=*/true);
    walk.merge(merger);
    bytes.in_forward = std::max(bytes.in_forward, last.held() + outputs + walk.in_forward());
    outputs += features;
    walks.push_back(walk);
  }
  int64_t freed = 0;
  for (const MergerWalk& walk : std::views::reverse(walks)) {
    bytes.kept += walk.kept();
    bytes.in_backward = std::max(bytes.in_backward, outputs + walk.in_backward() - freed);
    freed += walk.kept() - rows.hidden();  // the gradient of its rows stays
  }
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  return {.pass = training(pass, layer).in_forward};
}

}  // namespace

const BlockRow kRow{.name = "tower_mergers", .training = training, .generation = generation};

}  // namespace sftrun::plan::tower_mergers
