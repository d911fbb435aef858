#include "run_memory.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "device_memory.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/image_load.h"
#include "sftrun/plan/answers_memory.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

/// Whether the largest micro-batch is the one that is tried before the first step. On a CPU the plan
/// decides, and so does not depend on it.
bool plans_longest_batch(const PreparedRun& run) {
  using enum config::LongestBatchFirst;
  const config::LongestBatchFirst wanted = run.config.train.longest_batch_first;
  return wanted == kOn || (wanted == kAuto && run.compute.device.is_cuda());
}

/// Tokens of the run's largest micro-batch, for each of its bins; 0: the data is not read yet.
double tokens_of_bin(const PreparedRun& run) {
  if (!run.data.batches) return 0;
  const int64_t bins = run.config.train.batch_size.value.value();
  return static_cast<double>(run.data.batches->micro_batch_tokens(bins, plans_longest_batch(run))) /
         static_cast<double>(bins);
}

/// Images of the run's largest micro-batch, for each of its bins; none: the data is not read yet, or streamed.
plan::ImagesOfBin images_of_bin(const PreparedRun& run) {
  if (!run.has_images || !run.data.batches) return {};
  const int64_t bins = run.config.train.batch_size.value.value();
  data::ImageCounter counter(run.text->images->processor,
                             run.checkpoint->arch().vision->patches.side);
  const data::ImageLoad load =
      run.data.batches->micro_batch_images(bins, plans_longest_batch(run), counter);
  return plan::ImagesOfBin::of({load.tiles, load.patches, load.longest_tile}, bins);
}

plan::MemoryPlan memory_plan(const PreparedRun& run, const Rank& rank) {
  return plan::memory_plan(run.checkpoint->arch(), run.config, planned_devices(run, rank),
                           weights::packed_bytes(*run.checkpoint));
}

}  // namespace

plan::RunDevices planned_devices(const PreparedRun& run, const Rank& rank) {
  return {.element_bytes = static_cast<int64_t>(c10::elementSize(run.compute.dtype)),
          .on_gpu = run.compute.device.is_cuda(),
          .world_size = rank.env().world_size,
          .local_world_size = rank.env().local_world_size,
          .threads = at::get_num_threads(),
          .tokens_of_bin = tokens_of_bin(run),
          .tower = plan::TowerUse::of(run.config.tuning, run.checkpoint->arch(), run.has_images),
          .images = images_of_bin(run),
          .teacher = run.teacher_use};
}

observe::RankBytes planned_bytes(const PreparedRun& run, const Rank& rank) {
  const plan::MemoryPlan plan = memory_plan(run, rank);
  const auto answers =
      plan::answers_memory(run.checkpoint->arch(), run.config, planned_devices(run, rank), plan);
  const int64_t of_answers = answers ? answers->total() : 0;  // between steps
  const auto bytes = [](int64_t value) { return static_cast<uint64_t>(value); };
  return {.base = bytes(plan.held.base + plan.held.teacher),
          .trainable = bytes(plan.held.trainable + plan.held.start),
          .gradients = bytes(plan.held.gradients),
          .optimizer = bytes(plan.held.optimizer),
          .activations_peak = bytes(std::max(plan.held.gathered + plan.step.peak(), of_answers))};
}

namespace {

/// Bytes of a micro-batch at its peak that come with each token, and with each patch.
struct MarginalBytes {
  int64_t of_token = 0, of_patch = 0;
};

/// As differences of plans for a sequence with as many tokens as it may have.
MarginalBytes marginal_bytes(const PreparedRun& run, const Rank& rank) {
  constexpr int64_t kTiles = 16;
  config::RunConfig config = run.config;
  config.train.batch_size.value = 1;
  plan::RunDevices devices = planned_devices(run, rank);
  const int64_t tile = std::max<int64_t>(1, devices.images.longest_tile);
  const auto bytes = [&](double tokens, int64_t tiles) {
    devices.tokens_of_bin = tokens;
    devices.images = plan::ImagesOfBin::of(
        {.tiles = tiles, .patches = tiles * tile, .longest_tile = tile}, /*bins=*/1);
    return plan::memory_plan(run.checkpoint->arch(), config, devices,
                             weights::packed_bytes(*run.checkpoint))
        .step.peak();
  };
  const int64_t half =
      std::max<int64_t>(1, config.data.bin_tokens.value.value_or(config.model.max_seq_len) / 2);
  const int64_t most = bytes(static_cast<double>(2 * half), kTiles);
  const auto per = [&](int64_t less, int64_t count) {
    return std::max<int64_t>(0, most - less) / count;
  };
  return {.of_token = per(bytes(static_cast<double>(half), kTiles), half),
          .of_patch = per(bytes(static_cast<double>(2 * half), kTiles / 2), kTiles / 2 * tile)};
}

}  // namespace

std::vector<data::BinCost> memory_measures(const PreparedRun& run, const Rank& rank) {
  if (!run.has_images) return {};
  const auto counter = std::make_shared<data::ImageCounter>(
      run.text->images->processor, run.checkpoint->arch().vision->patches.side);
  const auto patches = [counter](const data::ExampleStore& examples, const data::Bin& bin) {
    return counter->of(examples, bin).patches;
  };
  const MarginalBytes bytes = marginal_bytes(run, rank);
  return {patches, [bytes, patches](const data::ExampleStore& examples, const data::Bin& bin) {
            return bytes.of_token * data::tokens_of(examples, bin) +
                   bytes.of_patch * patches(examples, bin);
          }};
}

bool tries_longest_batch(const PreparedRun& run, const Rank& rank) {
  using enum config::LongestBatchFirst;
  const config::LongestBatchFirst wanted = run.config.train.longest_batch_first;
  if (wanted != kAuto || run.compute.device.is_cuda()) return wanted != kOff;
  const plan::MemoryPlan plan = memory_plan(run, rank);
  const uint64_t memory = device_memory_bytes(run.compute.device, rank.env().local_world_size);
  return static_cast<uint64_t>(plan.peak()) > memory / 2;
}

}  // namespace sftrun::engine
