#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "sftrun/config/places.h"

namespace sftrun::config {

struct ParallelConfig;

/// From the ranks that communicate least to those that communicate most: ranks that differ only in a
/// later axis are closer to each other.
enum class Axis : uint8_t {
  kPp,           ///< pipeline: stages
  kDpReplicate,  ///< data parallelism with copies of the parameters
  kDpShard,      ///< data parallelism with shards of the parameters
  kCp,           ///< context parallelism: parts of each sequence
  kTp,           ///< tensor parallelism: parts of each matrix
};
inline constexpr int64_t kNumAxes = 5;

/// What is divided over the ranks of `dp_shard`, each level with those before it (ZeRO stages 1 to 3,
/// arXiv:1910.02054).
enum class ShardLevel : uint8_t { kNone, kOptimizer, kGradients, kWeights };

/// How the processes of a run divide the work: what `parallel.strategy` and the sizes beside it mean.
/// The sizes are those of parallel::MeshSizes; their product is world_size, or with
/// `stages_in_process` the number of devices of the one process.
struct Axes {
  int64_t pp = 1;
  int64_t dp_replicate = 1, dp_shard = 1;
  int64_t cp = 1;
  int64_t tp = 1;
  ShardLevel level = ShardLevel::kNone;  ///< what is divided over `shards` ranks
  bool stages_in_process = false;        ///< parallel.device_map: stages are threads of one process

  /// Ranks over which one copy of the parameters is divided. Those that share sequences are among
  /// them: they own the same values, too.
  int64_t shards() const { return has_shards() ? dp_shard * cp : 1; }
  /// Parts of a global batch that are computed at the same time.
  int64_t data_parts() const { return dp_replicate * dp_shard; }
  /// Devices that compute one such part together.
  int64_t devices_of_part() const;
  /// What computes one: "process", "pipeline" (of stages), "group" (of devices).
  const char* part_word() const;
  /// Whether a device has some of the layers. A device map may also have one device.
  bool has_stages() const { return pp > 1 || stages_in_process; }
  bool has_stages_alone() const { return has_stages() && devices_of_part() == pp; }
  bool has_shards() const { return level != ShardLevel::kNone; }
  bool shards_weights() const { return level == ShardLevel::kWeights; }
  /// Whether a device has a part of the layers, or of each matrix, and computes with that alone.
  bool divides_model() const { return has_stages() || tp > 1; }
  bool operator==(const Axes&) const = default;
};

/// What code that treats all axes alike knows of one.
struct AxisRow {
  Axis axis;
  const char* name;      ///< "tp": of groups of ranks, and in run.json
  const char* key;       ///< "parallel.tp"
  const char* strategy;  ///< the preset of this axis alone: "tensor"; "": the level's
  int64_t Axes::*ranks;
  std::optional<int64_t> ParallelConfig::*asked;  ///< the size in the YAML
  const char* what;      ///< of such a size, in errors: "the processes that divide each matrix"
  bool divides_batches;  ///< its ranks compute different parts of a global batch
};
/// A row for each axis, in the order of the enumeration, which is that of the mesh.
std::span<const AxisRow> axis_rows();
const AxisRow& row_of(Axis axis);

/// The axes of a run. Sizes that are not set follow from the strategy: `pipeline` has all processes
/// that other sizes leave as stages, `tensor` as parts of a matrix, `fsdp` and the others that shard
/// as shards, `hybrid` those of a machine; what is left then has copies.
/// @param parallel strategy `auto` without sizes is ddp
/// @param places of keys, for errors   @throws ConfigError if the sizes do not divide world_size
Axes axes_of(const ParallelConfig& parallel, int world_size, int local_world_size,
             const Places& places = {});

/// What the ranks of `dp_shard` divide; kNone: the run has copies.
ShardLevel level_of(const ParallelConfig& parallel);
/// The setting by which a device keeps some of the layers ("parallel.pp", "parallel.strategy:
/// pipeline", "parallel.device_map"); empty: there is none.
std::string stage_setting(const ParallelConfig& parallel);
/// The setting by which a device keeps a part of each matrix; empty: there is none.
std::string tensor_setting(const ParallelConfig& parallel);
/// The setting by which devices share sequences; empty: there is none.
std::string context_setting(const ParallelConfig& parallel);
/// The setting of stages or of parts of matrices; empty: there is neither.
std::string model_division_setting(const ParallelConfig& parallel);

/// "fsdp 4 x tensor 2", "pipeline 2 x ddp 2", "single"
std::string describe(const Axes& axes);

}  // namespace sftrun::config
