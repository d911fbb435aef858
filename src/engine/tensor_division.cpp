#include "tensor_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::engine {
namespace {

/// The sizes of the blocks in which the matrices of a frozen base are stored, or will be quantised.
class Blocks {
 public:
  Blocks(const weights::Checkpoint& checkpoint, const config::TuningConfig& tuning)
      : checkpoint_(checkpoint), is_frozen_(tuning.trains_adapter()) {
    const std::optional<QuantOptions> options = tuning.quant_options();
    if (!options || !quant_info(options->format).has_blocks) return;
    quantised_ = plan::quantised_names(checkpoint.arch(), tuning);
    block_size_ = options->block_size;
  }

  /// Consecutive values of a row that cannot be separated.
  int64_t values_of(const std::string& tensor) const {
    if (!is_frozen_) return 1;
    const auto packed = checkpoint_.packed(tensor);
    const int64_t stored = packed ? weights::values_per_block(*packed) : 1;
    return quantised_.contains(tensor) ? std::max(stored, block_size_) : stored;
  }

 private:
  const weights::Checkpoint& checkpoint_;
  bool is_frozen_;
  std::set<std::string> quantised_;
  int64_t block_size_ = 1;
};

/// Heads cannot be divided where it suits the format.
void require_whole_blocks(const std::string& tensor, int64_t channels, int64_t block,
                          int64_t parts) {
  if (channels / parts % block == 0) return;
  throw ConfigError(
      fmt::format("tensor parallelism: a part of {} has {}, and its format stores blocks of {} "
                  "values",
                  tensor, counted(channels / parts, "column"), block),
      "parallel.tp",
      "set parallel.tp to a smaller number, or use, without parallel.tp, parallel.strategy fsdp");
}

}  // namespace

spec::TensorParallel tensor_part(const weights::Checkpoint& checkpoint,
                                 const config::RunConfig& config, const parallel::Mesh& mesh) {
  const spec::ArchSpec& arch = checkpoint.arch();
  spec::TensorParallel part{.rank = mesh.rank(parallel::Axis::kTp), .size = mesh.sizes().tp};
  plan::require_parts(arch, config, part.size, "parallel.tp");
  const Blocks blocks(checkpoint, config.tuning);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const auto name = [&](const std::string& module) {
      return spec::name_in_layer(arch, layer, module);
    };
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.division != Division::kInputs) continue;
      const std::string tensor = name(linear.module) + ".weight";
      const int64_t block = blocks.values_of(tensor);
      if (linear.segments.front().by == spec::Segment::By::kHeads)
        require_whole_blocks(tensor, linear.in_features, block, part.size);
      else
        part.multiple = std::max(part.multiple, block);
    }
    for (const spec::ExpertSpec& experts : spec::layer_experts(arch, layer))
      if (experts.division == Division::kInputs)
        part.multiple = std::max(part.multiple, blocks.values_of(name(experts.module)));
  }
  spec::require_divisible(arch, part, "parallel.tp");
  return part;
}

}  // namespace sftrun::engine
