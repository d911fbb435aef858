#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/step_memory.h"
#include "sftrun/plan/strategy_sizes.h"
#include "sftrun/spec/arch_spec.h"

/// The memory of one device in a run, by purpose, and what would fit. docs/memory.md explains the
/// terms and says how far off they may be.
namespace sftrun::plan {

/// Bytes of the device that needs most.
struct MemoryPlan {
  StaticMemory held;
  StepMemory step;
  int64_t communication = 0;  ///< buffers of collectives, those inside NCCL included
  /// Of the process: CUDA's context; on a CPU the program itself, and blocks of freed tensors that
  /// are kept for the next ones.
  int64_t context = 0;
  int64_t margin = 0;  ///< for gaps between tensors that the allocator cannot use

  /// Tensors: what the allocator counts.
  int64_t tensors() const { return held.total() + step.peak(); }
  /// The most memory in use at a time.
  int64_t peak() const { return tensors() + communication + context; }
  /// What a device should have.
  int64_t needed() const { return peak() + margin; }
};

/// @param config resolved: strategy, batch sizes and dtype have values
MemoryPlan memory_plan(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const RunDevices& devices, const StoredBytes& stored = {});

/// The micro-batch of a run.   @pre as of memory_plan
MicroBatchShape micro_batch_shape(const config::RunConfig& config, const RunDevices& devices);

/// The run with another strategy; sizes that are not given follow from it. The global batch stays
/// the same if the numbers divide.
struct StrategyChoice {
  StrategySizes sizes;
  bool is_own = false;                      ///< of the run
  std::string refusal;                      ///< why the run cannot use it; empty: it can
  std::optional<config::RunConfig> config;  ///< null: refused
  std::optional<RunDevices> devices;        ///< a device map is one process
};
StrategyChoice with_strategy(const spec::ArchSpec& arch, const config::RunConfig& config,
                             const StrategySizes& sizes, const RunDevices& devices,
                             const StoredBytes& stored = {}, const StoredBlocks& blocks = {});

/// Every strategy for that many devices, then `combinations`: one process has `single` only; zero1
/// and zero2 are for runs that train base weights, hybrid is for several machines. The run's own
/// strategy is always among them.
std::vector<StrategyChoice> strategy_choices(const spec::ArchSpec& arch,
                                             const config::RunConfig& config,
                                             const RunDevices& devices,
                                             const StoredBytes& stored = {},
                                             const StoredBlocks& blocks = {});

/// The largest train.batch_size with which the run needs at most `memory_bytes`; 0: none. With the
/// run's own sequences, which small data may shorten.
int64_t largest_batch_size(const spec::ArchSpec& arch, const config::RunConfig& config,
                           const RunDevices& devices, const StoredBytes& stored,
                           int64_t memory_bytes);
/// The same with sequences of model.max_seq_len tokens, as in largest_seq_len.
int64_t largest_full_batch_size(const spec::ArchSpec& arch, const config::RunConfig& config,
                                const RunDevices& devices, const StoredBytes& stored,
                                int64_t memory_bytes);
/// The largest model.max_seq_len, a multiple of kSeqLenStep, with the run's own batch size; 0: none.
inline constexpr int64_t kSeqLenStep = 64;
int64_t largest_seq_len(const spec::ArchSpec& arch, const config::RunConfig& config,
                        const RunDevices& devices, const StoredBytes& stored, int64_t memory_bytes);
/// The same, and what a run has use for: at most the positions that the model was trained for.
struct LongestSequences {
  int64_t fitting = 0, useful = 0;
  bool model_limits() const { return useful < fitting; }
};
LongestSequences longest_sequences(const spec::ArchSpec& arch, const config::RunConfig& config,
                                   const RunDevices& devices, const StoredBytes& stored,
                                   int64_t memory_bytes);

}  // namespace sftrun::plan
