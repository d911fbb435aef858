#include "sftrun/plan/tensor_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::plan {
namespace {

/// The sizes of the blocks in which the matrices of a frozen base are stored, or will be quantised.
class Blocks {
 public:
  Blocks(const spec::ArchSpec& arch, const config::TuningConfig& tuning, const StoredBlocks& stored)
      : stored_(stored), is_frozen_(tuning.trains_adapter()) {
    const std::optional<QuantOptions> options = tuning.quant_options();
    if (!options || !quant_info(options->format).has_blocks) return;
    quantised_ = quantised_names(arch, tuning);
    block_size_ = options->block_size;
  }

  /// Consecutive values of a row that cannot be separated.
  int64_t values_of(const std::string& tensor) const {
    if (!is_frozen_) return 1;
    const auto found = stored_.find(tensor);
    const int64_t stored = found == stored_.end() ? 1 : found->second;
    return quantised_.contains(tensor) ? std::max(stored, block_size_) : stored;
  }

 private:
  const StoredBlocks& stored_;
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

spec::TensorParallel tensor_part(const spec::ArchSpec& arch, const config::RunConfig& config,
                                 const StoredBlocks& stored, spec::TensorParallel part) {
  // Commands that use a model divide it, too. What a training step refuses is not for them.
  config::require_possible(config, {.tp = part.size}, config::KnownBy::kModel,
                           model_facts(arch, config),
                           [](const config::Divisions&) { return "parallel.tp"; });
  require_parts(arch, part.size, "parallel.tp");
  const Blocks blocks(arch, config.tuning, stored);
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

std::vector<int64_t> sizes_of_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                                    const StoredBlocks& stored, int64_t max) {
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= max; ++size) {
    try {
      tensor_part(arch, config, stored, {.rank = 0, .size = size});
      sizes.push_back(size);
    } catch (const ConfigError&) {  // it does not fit
    }
  }
  return sizes;
}

}  // namespace sftrun::plan
