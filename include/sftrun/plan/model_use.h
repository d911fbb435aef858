#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/answers_memory.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/tensor_division.h"
#include "sftrun/spec/arch_spec.h"

/// How a model that is used without training is divided over devices, if one does not hold it.
namespace sftrun::plan {

/// What a command does with a model.
struct ModelUse {
  config::TuningConfig tuning;  ///< how the base is held: as by a run that trains an adapter of it
  int64_t adapter_values = 0;   ///< of all adapters
  SequencesMemory sequences;
  /// All processes answer together: `serve`, `chat`, a single prompt. False: they may have a copy of
  /// the model each, and share records.
  bool has_one_copy = false;
};

/// The files of the base.
struct ModelFiles {
  spec::ArchSpec arch;
  StoredBytes stored;
  StoredBlocks blocks;
};

struct UseDevices {
  uint64_t memory_bytes = 0;  ///< that a process can use of the smallest one
  int64_t element_bytes = 4;  ///< of the compute dtype
  bool on_gpu = false;
  int64_t count = 1;                       ///< GPUs; on a CPU, processes
  std::optional<int64_t> processes = {};   ///< that the user has asked for
  std::optional<int64_t> of_machine = {};  ///< of them on a machine; unset: all
  bool is_one_process = false;             ///< only stages on the GPUs of one process
};

/// Bytes of the device that needs most.
struct UseMemory {
  int64_t weights = 0;    ///< with adapters
  int64_t gathered = 0;   ///< layers that fsdp gathers
  int64_t sequences = 0;  ///< caches, hidden states, logits
  int64_t process = 0;    ///< CUDA's context, buffers of collectives

  /// Without it nothing can be computed.
  int64_t least() const { return weights + gathered + process; }
  /// With a margin for gaps between tensors.
  int64_t needed() const;
};

/// The whole model for each process, or a part of it.
struct UseDivision {
  /// kSingle: the whole. kAuto: by both sizes. kDeviceMap: pp stages in one process.
  config::Strategy strategy = config::Strategy::kSingle;
  int64_t pp = 1, tp = 1;
  int64_t processes = 1;
  UseMemory memory = {};

  bool divides() const { return strategy != config::Strategy::kSingle; }
  std::string flags() const;  ///< "--strategy tensor --tp 2 --nproc-per-node 4"; empty: the whole
};

/// The divisions that the model allows, the best first: the whole on each device, matrices divided
/// inside a machine, both matrices and stages, stages, and fsdp; of each, fewer devices for a copy
/// first.
/// @param hint the division of the run that trained the model; comes before others that divide
std::vector<UseDivision> use_divisions(const ModelFiles& files, const ModelUse& use,
                                       const UseDevices& devices,
                                       const config::Axes* hint = nullptr);

struct UseChoice {
  UseDivision division;
  bool fits = false;
};
/// The first division that fits; if there is none, that which needs least memory.
/// nullopt: the model allows none for these processes
std::optional<UseChoice> choose_division(const ModelFiles& files, const ModelUse& use,
                                         const UseDevices& devices,
                                         const config::Axes* hint = nullptr);

}  // namespace sftrun::plan
