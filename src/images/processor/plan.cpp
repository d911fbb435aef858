#include "plan_builder.h"
#include "sftrun/core/error.h"

namespace sftrun::images {

namespace {

/// What plans the sizes of a kind.
struct Planner {
  ProcessorKind kind;
  void (*plan)(PlanBuilder& builder);
};

constexpr auto kPlanners = std::to_array<Planner>({
    {ProcessorKind::kQwen2Vl, plan_qwen2_vl},
    {ProcessorKind::kGemma3, plan_gemma3},
    {ProcessorKind::kGemma4, plan_gemma4},
    {ProcessorKind::kIdefics3, plan_idefics3},
    {ProcessorKind::kClip, plan_single},
    {ProcessorKind::kSiglip, plan_single},
    {ProcessorKind::kLlava, plan_llava},
    {ProcessorKind::kLlavaNext, plan_llava_next},
    {ProcessorKind::kPixtral, plan_pixtral},
    {ProcessorKind::kInternVl, plan_intern_vl},
});
static_assert(kPlanners.size() == kProcessors.size());
static_assert(are_in_order(kPlanners, &Planner::kind));

constexpr int64_t kMaxPlannedValues = int64_t{1} << 30;

void count_rows(const PlanBuilder& builder, ImagePlan& plan) {
  const ImageProcessor& processor = builder.processor();
  if (processor.row().layout == PixelLayout::kPlanes) {
    plan.rows = static_cast<int64_t>(plan.tiles.size());
    plan.values_per_row = 3 * plan.tile_height * plan.tile_width;
  } else {
    plan.rows = plan.grid_thw[1] * plan.grid_thw[2];
    plan.values_per_row =
        3 * processor.temporal_patch_size * processor.patch_size * processor.patch_size;
  }
  if (plan.num_values() > kMaxPlannedValues)
    builder.refuse(fmt::format("would become {} values, which are too many", plan.num_values()));
}

int64_t pooled_patches(const ImageProcessor& processor) {
  const int64_t side = processor.kind == ProcessorKind::kGemma4 ? processor.pooling_kernel_size
                                                                : processor.merge_size;
  return side * side;
}

void count_tokens(PlanBuilder& builder) {
  ImagePlan& plan = builder.plan();
  const ImageProcessor& processor = builder.processor();
  const TokenRule rule = processor.row().tokens;
  if (rule == TokenRule::kPerTile) {
    plan.num_tokens = static_cast<int64_t>(plan.tiles.size()) * processor.image_seq_length;
  } else if (rule == TokenRule::kMergedPatches) {
    plan.num_tokens = plan.rows / pooled_patches(processor);
  } else if (processor.patch_size > 0) {
    plan.token_rows = plan.tile_height / processor.patch_size;
    plan.token_columns = plan.tile_width / processor.patch_size;
    plan.num_tokens = plan.token_rows * plan.token_columns + processor.extra_tokens;
    if (rule != TokenRule::kUnpadded) return;
    unpad(builder);
    plan.num_tokens += plan.unpadded_rows * (plan.unpadded_columns + 1);  // and the rows' ends
  }
}

}  // namespace

int64_t ImagePlan::num_values(const PatchForm& form) const {
  const bool is_in_tiles = values_per_row == 3 * tile_width * tile_height;
  if (!is_in_tiles) return num_values();
  return rows * 3 * (tile_width - tile_width % form.side) * (tile_height - tile_height % form.side);
}

ImagePlan finished_plan(PlanBuilder& builder) {
  ImagePlan& plan = builder.plan();
  count_rows(builder, plan);
  count_tokens(builder);
  return std::move(plan);
}

ImagePlan plan_image(const ImageProcessor& processor, int64_t width, int64_t height,
                     Backend backend) {
  SFTRUN_CHECK(width > 0 && height > 0);
  PlanBuilder builder(processor, {width, height}, backend);
  kPlanners[static_cast<size_t>(processor.kind)].plan(builder);
  return finished_plan(builder);
}

std::vector<int64_t> ImagePlan::shape(const ImageProcessor& processor) const {
  if (processor.row().layout == PixelLayout::kPlanes) return {rows, 3, tile_height, tile_width};
  return {rows, values_per_row};
}

}  // namespace sftrun::images
