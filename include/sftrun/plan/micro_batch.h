#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/strategy_sizes.h"
#include "sftrun/plan/teacher.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"

/// Estimates the memory of a training step from the architecture alone.
namespace sftrun::plan {

/// Bytes of the checkpoint's quantised matrices (below 16 bits per value), by name.
using StoredBytes = std::map<std::string, uint64_t>;
/// Consecutive values of a row that a stored format does not separate, by tensor
/// (weights::packed_blocks).
using StoredBlocks = std::map<std::string, int64_t>;

/// Whether a run that trains an adapter keeps its base in the files' quantised format.
/// @param holds_packed whether the files have quantised matrices
bool keeps_stored(const config::TuningConfig& tuning, bool holds_packed);

/// Whether tuning.skip_modules names the module or tensor.
bool is_skipped(const std::string& name, const config::TuningConfig& tuning);

/// Names of the tensors that the run quantises when it loads the base, whatever format the files have.
/// @pre tuning.quantises_base()
std::set<std::string> quantised_names(const spec::ArchSpec& arch,
                                      const config::TuningConfig& tuning);
/// The same of its tower and projector, where it loads them.   @pre arch.vision
std::set<std::string> quantised_tower_names(const spec::ArchSpec& arch,
                                            const config::TuningConfig& tuning);

/// Bytes of the frozen base of a run that trains an adapter: each tensor in what `tuning.quant`
/// makes of it.
int64_t base_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   int64_t element_bytes, const StoredBytes& stored = {},
                   const TowerUse& tower = {});

/// The device for which memory is estimated.
struct DeviceShare {
  bool on_gpu = false;  ///< paged optimizers then keep their moments in host memory
  TowerUse tower = {};
  ImagesOfBin images = {};                         ///< for max_micro_batch
  std::shared_ptr<const TeacherUse> teacher = {};  ///< beside the model; null: none
};

/// Memory of one device between two micro-batches.
struct StaticMemory {
  int64_t base = 0;       ///< frozen
  int64_t trainable = 0;  ///< masters and copies in the compute dtype
  int64_t gradients = 0, optimizer = 0;
  int64_t start = 0;     ///< initial trained values, for the reference model (config::keeps_start)
  int64_t teacher = 0;   ///< weights of a model beside this one
  int64_t gathered = 0;  ///< units that are whole while they are used
  int64_t total() const {
    return base + trainable + gradients + optimizer + start + teacher + gathered;
  }
};
StaticMemory static_memory(const spec::ArchSpec& arch, const config::RunConfig& config,
                           int64_t element_bytes, const StoredBytes& stored = {},
                           const DeviceShare& device = {});
/// Its total: bytes of weights, gradients, optimizer state and compute copies on one device, without
/// activations. If weights are divided, with the whole memory of two units: the one that is used,
/// and the next. Of a pipeline, on the device with the largest stage; of tensor parallelism, on the
/// device with the largest part.
int64_t static_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                     int64_t element_bytes, const StoredBytes& stored = {},
                     const DeviceShare& device = {});

/// Bytes of each unit of the model (embedding, each layer, head): its weights in their own formats,
/// and the gradients, optimizer state and copies of what trains. With a tied embedding the head has
/// one of its own, as it has on another device. The tower is where the embedding is, and counted there.
std::vector<double> unit_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                               int64_t element_bytes, const StoredBytes& stored = {},
                               const DeviceShare& device = {});

/// The largest micro-batch, in packed sequences of max_seq_len tokens (or examples of that length;
/// for objectives on pairs, pairs of them), that fits a device with `memory_bytes`; between 1 and
/// config::kMaxAutoMicroBatch. A fifth of the memory is reserved for everything that is not
/// estimated.
int64_t max_micro_batch(const spec::ArchSpec& arch, const config::RunConfig& config,
                        uint64_t memory_bytes, int64_t element_bytes,
                        const StoredBytes& stored = {}, const DeviceShare& device = {});

/// Where a run will train.
struct RunDevices {
  uint64_t memory_bytes = 0;  ///< of one device
  int64_t element_bytes = 4;  ///< of the compute dtype
  bool on_gpu = false;
  int world_size = 1, local_world_size = 1;
  int64_t threads = 1;  ///< of a process; each works on an attention head of a CPU
  /// Tokens of the largest micro-batch of the run's data, for each of its packed sequences (or
  /// examples, pairs); 0: not known, as many as they may have.
  double tokens_of_bin = 0;
  /// Not known before the data is read: strategies and automatic batch sizes then count no images, but the
  /// weights of a tower that is loaded.
  TowerUse tower = {};
  ImagesOfBin images = {};
  std::shared_ptr<const TeacherUse> teacher = {};  ///< beside the model; null: none
};
/// What `parallel.strategy: auto` becomes: the first of ddp, zero1, zero2, hybrid, fsdp,
/// `combinations`, tensor and pipeline with which one packed sequence fits into four fifths of a
/// device's memory, and train.batch_size of them into all of it; if none does, that which needs
/// least, by memory_plan. So longer sequences never lead back to a division that shorter ones have left.
/// What divides the model is for GPUs, and has fewer parts of a batch at a time, so it is not
/// for runs whose batch_size and grad_accum are both given. zero1 and zero2 only if base weights
/// train, hybrid only on several machines. With `parallel.offload.params` only hybrid and fsdp, which
/// divide what is in host memory. None of those that `refusal_of` names; ddp if there is no other.
StrategySizes auto_strategy(const spec::ArchSpec& arch, const config::RunConfig& config,
                            const RunDevices& devices, const StoredBytes& stored = {},
                            const StoredBlocks& blocks = {});

}  // namespace sftrun::plan
