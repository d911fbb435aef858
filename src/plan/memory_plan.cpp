#include "sftrun/plan/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/device_map.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Assumptions; docs/memory.md says what they rest on.
constexpr int64_t kCudaContext = 736 * kMiB;  // with loaded kernels; cuBLAS: StepMemory::workspace
constexpr int64_t kNcclBuffers = 256 * kMiB;  // of one communicator
constexpr int64_t kCpuProcess = 154 * kMiB;   // LibTorch's code and data, data readers
constexpr int64_t kTokenizerEntry = 200;      // bytes for each token of the vocabulary
constexpr int64_t kImageProcess =
    10 * kMiB;  // decoders, images between file and patches, the tower's operators
constexpr int64_t kTeacherProcess = 10 * kMiB;  // the files of a second model
/// A CPU's allocator keeps this part of the tensors' peak of freed ones, at most 1/16 (decision 52).
/// Gradients of whole matrices have many sizes.
constexpr int64_t kKeptOfAdapters = 32, kKeptOfBase = 16;
constexpr int64_t kGlooBuffers = 4 * kMiB;        // of a rank
constexpr int64_t kLargeGlooBuffers = 12 * kMiB;  // with tensor, and zero1, which sends all weights
constexpr double kGaps = 0.05;                    // of the tensors

/// Groups of ranks that have collectives of their own at the same time: one for each axis.
int64_t num_communicators(const config::Axes& axes) {
  const auto rows = config::axis_rows();
  return std::count_if(rows.begin(), rows.end(),
                       [&](const config::AxisRow& row) { return axes.*row.ranks > 1; });
}

int64_t communication_bytes(const config::RunConfig& config, const RunDevices& devices,
                            int64_t gradients) {
  if (devices.world_size == 1) return 0;
  // Gradients that are sent in bf16 are copied to it.
  const config::Axes& axes = config.parallel.axes;
  const bool rounds = axes.dp_replicate > 1 && !axes.has_shards() &&
                      config.train.ddp_comm_hook == config::CommHook::kBf16;
  const bool sends_much = axes.tp > 1 || axes.level == config::ShardLevel::kOptimizer;
  const int64_t of_gloo = sends_much ? kLargeGlooBuffers : kGlooBuffers;
  return (rounds ? gradients / 2 : 0) +
         (devices.on_gpu ? num_communicators(axes) * kNcclBuffers : of_gloo);
}

}  // namespace

MicroBatchShape micro_batch_shape(const config::RunConfig& config, const RunDevices& devices) {
  const int64_t sequences = config.train.sequences(),
                bin = config.data.bin_tokens.value.value_or(config.model.max_seq_len);
  auto of_bin = static_cast<double>(sequences * bin);
  if (devices.tokens_of_bin > 0) of_bin = std::min(of_bin, devices.tokens_of_bin);
  const auto bins = static_cast<double>(config.train.batch_size.value.value());
  return {.tokens = static_cast<int64_t>(std::ceil(bins * of_bin)),
          .element_bytes = devices.element_bytes,
          .on_gpu = devices.on_gpu,
          .threads = devices.threads,
          .tower = devices.tower,
          .images = devices.images.times(config.train.batch_size.value.value()),
          .teacher = devices.teacher};
}

namespace {

/// What a process on a CPU has beside tensors.
int64_t process_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                      const RunDevices& devices, int64_t tensors) {
  int64_t bytes = kCpuProcess + kTokenizerEntry * arch.vocab_size +
                  tensors / (config.tuning.trains_adapter() ? kKeptOfAdapters : kKeptOfBase);
  std::set<std::string_view> blocks;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const spec::BlockTensors& block : spec::layer_blocks(arch, layer))
      blocks.insert(block.block);
  for (const std::string_view block : blocks) bytes += block_row(block).process_bytes;
  if (devices.teacher)
    bytes += kTeacherProcess + kTokenizerEntry * devices.teacher->arch.vocab_size;
  return bytes + (devices.tower.is_loaded ? kImageProcess : 0);
}

StaticMemory held_by(const spec::ArchSpec& arch, const config::RunConfig& config,
                     const RunDevices& devices, const StoredBytes& stored) {
  return static_memory(
      arch, config, devices.element_bytes, stored,
      {.on_gpu = devices.on_gpu, .tower = devices.tower, .teacher = devices.teacher});
}

MemoryPlan with_step(const StaticMemory& held, const spec::ArchSpec& arch,
                     const config::RunConfig& config, const RunDevices& devices) {
  MemoryPlan plan{.held = held,
                  .step = step_memory(arch, config, micro_batch_shape(config, devices)),
                  .communication = communication_bytes(config, devices, held.gradients)};
  plan.context =
      devices.on_gpu ? kCudaContext : process_bytes(arch, config, devices, plan.tensors());
  plan.margin = static_cast<int64_t>(kGaps * static_cast<double>(plan.tensors()));
  return plan;
}

}  // namespace

MemoryPlan memory_plan(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const RunDevices& devices, const StoredBytes& stored) {
  return with_step(held_by(arch, config, devices, stored), arch, config, devices);
}

namespace {

/// Keeps the global batch: with fewer parts of it at a time, each has more micro-batches.
void keep_global_batch(const config::RunConfig& before, int64_t parts_before, int64_t parts,
                       config::RunConfig& config) {
  const int64_t accum = before.train.grad_accum.value.value_or(1) * parts_before;
  config.train.grad_accum.value = std::max<int64_t>(1, accum / parts);
}

}  // namespace

StrategyChoice with_strategy(const spec::ArchSpec& arch, const config::RunConfig& config,
                             const StrategySizes& sizes, const RunDevices& devices,
                             const StoredBytes& stored, const StoredBlocks& blocks) {
  using enum config::Strategy;
  const config::Strategy strategy = sizes.strategy;
  StrategyChoice choice{.sizes = sizes, .is_own = sizes == own_sizes(config.parallel)};
  if (choice.is_own) {
    choice.refusal = refusal_of(arch, config, blocks);
    if (choice.refusal.empty()) choice.config = config, choice.devices = devices;
    return choice;
  }
  config::RunConfig other = config;
  RunDevices used = devices;
  other.parallel.strategy = strategy;
  other.parallel.device_map.reset(), other.parallel.dp_replicate.reset();
  other.parallel.pp = sizes.pp, other.parallel.tp = sizes.tp;
  other.parallel.dp_shard = sizes.dp_shard;
  try {
    if (strategy != kDeviceMap)
      config::resolve_axes(other.parallel, devices.world_size, devices.local_world_size);
    if (strategy == kDeviceMap) {
      config::RunConfig undivided = other;
      undivided.parallel.strategy = kSingle;
      undivided.parallel.axes = {};
      const DeviceStages stages = place_units(
          arch, other.parallel,
          {.num_gpus = devices.world_size,
           .unit_bytes = unit_bytes(arch, undivided, devices.element_bytes, stored,
                                    {.on_gpu = devices.on_gpu, .tower = devices.tower})},
          {});
      other.parallel.device_map = as_places(stages, arch);
      other.parallel.pp = static_cast<int64_t>(stages.devices.size());
      used.world_size = used.local_world_size = 1;
      config::resolve_axes(other.parallel, 1, 1);
    }
  } catch (const ConfigError& error) {
    choice.refusal = error.message();
    return choice;
  }
  choice.refusal = refusal_of(arch, other, blocks);
  if (!choice.refusal.empty()) return choice;
  keep_global_batch(config, config.parallel.axes.data_parts(), other.parallel.axes.data_parts(),
                    other);
  choice.config = std::move(other), choice.devices = used;
  return choice;
}

std::vector<StrategyChoice> strategy_choices(const spec::ArchSpec& arch,
                                             const config::RunConfig& config,
                                             const RunDevices& devices, const StoredBytes& stored,
                                             const StoredBlocks& blocks) {
  const StrategySizes own = own_sizes(config.parallel);
  std::vector<StrategySizes> tried;
  if (devices.world_size == 1) {
    tried = {own};
  } else {
    for (const config::StrategyRow& row : config::kStrategies) {
      const bool is_own =
          config::strategy_row(own.strategy).same == row.strategy;  // by its other name
      if (!is_tried(row, config.tuning, devices)) continue;
      tried.push_back(row.strategy == config::Strategy::kTensor
                          ? tensor_in_machine(devices.world_size, devices.local_world_size)
                          : StrategySizes{.strategy = is_own ? own.strategy : row.strategy});
    }
    for (const StrategySizes& sizes : combinations(devices.world_size, devices.local_world_size))
      tried.push_back(sizes);
    if (std::find(tried.begin(), tried.end(), own) == tried.end()) tried.insert(tried.begin(), own);
  }
  std::vector<StrategyChoice> choices;
  for (const StrategySizes& sizes : tried)
    choices.push_back(with_strategy(arch, config, sizes, devices, stored, blocks));
  return choices;
}

namespace {

/// The largest number of 1 … most that fits; 0: none.   @pre what fits grows with smaller numbers
int64_t largest_that(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t low = 0, high = 1;
  while (high <= most && fits(high)) low = high, high *= 2;
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

/// What the run holds beside a micro-batch is computed once.
class StepFit {
 public:
  StepFit(const spec::ArchSpec& arch, const config::RunConfig& config, const RunDevices& devices,
          const StoredBytes& stored, int64_t memory_bytes)
      : arch_(arch),
        config_(config),
        devices_(devices),
        memory_bytes_(memory_bytes),
        held_(held_by(arch, config, devices, stored)) {}

  config::RunConfig& config() { return config_; }
  bool fits() const { return with_step(held_, arch_, config_, devices_).needed() <= memory_bytes_; }

 private:
  const spec::ArchSpec& arch_;
  config::RunConfig config_;
  const RunDevices& devices_;
  int64_t memory_bytes_;
  StaticMemory held_;
};

}  // namespace

int64_t largest_batch_size(const spec::ArchSpec& arch, const config::RunConfig& config,
                           const RunDevices& devices, const StoredBytes& stored,
                           int64_t memory_bytes) {
  constexpr int64_t kMax = 65536;
  StepFit fit(arch, config, devices, stored, memory_bytes);
  return largest_that(kMax, [&](int64_t size) {
    fit.config().train.batch_size.value = size;
    return fit.fits();
  });
}

namespace {

/// Sequences are as long as they may be; a bin of another size has no meaning then.
std::pair<config::RunConfig, RunDevices> with_full_sequences(config::RunConfig config,
                                                             RunDevices devices) {
  devices.tokens_of_bin = 0;
  config.data.bin_tokens.value.reset();
  return {std::move(config), devices};
}

}  // namespace

int64_t largest_full_batch_size(const spec::ArchSpec& arch, const config::RunConfig& config,
                                const RunDevices& devices, const StoredBytes& stored,
                                int64_t memory_bytes) {
  const auto [full, of_full] = with_full_sequences(config, devices);
  return largest_batch_size(arch, full, of_full, stored, memory_bytes);
}

int64_t largest_seq_len(const spec::ArchSpec& arch, const config::RunConfig& config,
                        const RunDevices& here, const StoredBytes& stored, int64_t memory_bytes) {
  constexpr int64_t kMax = int64_t{1} << 24;
  const auto [full, devices] = with_full_sequences(config, here);
  StepFit fit(arch, full, devices, stored, memory_bytes);
  return kSeqLenStep * largest_that(kMax / kSeqLenStep, [&](int64_t steps) {
           fit.config().model.max_seq_len = steps * kSeqLenStep;
           return fit.fits();
         });
}

LongestSequences longest_sequences(const spec::ArchSpec& arch, const config::RunConfig& config,
                                   const RunDevices& devices, const StoredBytes& stored,
                                   int64_t memory_bytes) {
  const int64_t fitting = largest_seq_len(arch, config, devices, stored, memory_bytes);
  return {.fitting = fitting, .useful = std::min(fitting, num_positions(arch).value_or(fitting))};
}

}  // namespace sftrun::plan
