#include "sftrun/plan/tensor_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/micro_batch.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kSmallestBlock = 32;  // of tuning.quant_block_size

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
void require_whole_blocks(const std::string& tensor, int64_t channels, int64_t block, int64_t parts,
                          const std::string& place) {
  if (channels / parts % block == 0) return;
  throw ConfigError(
      fmt::format("tensor parallelism: a part of {} has {}, and its format stores blocks of {} "
                  "values",
                  tensor, counted(channels / parts, "column"), block),
      place, "");
}

/// Whether each rank's part begins and ends where a block does, in a matrix whose rows are not whole
/// blocks.
bool is_cut_between_blocks(const spec::TensorSpec& tensor, const TensorSlice& slice,
                           int64_t block) {
  const int64_t columns = tensor.shape.back();
  if (slice.dim + 1 == std::ssize(tensor.shape)) return false;
  return std::ranges::all_of(slice.ranges, [&](const IndexRange& range) {
    const auto is_cut = [&](int64_t row) {
      return row == slice.whole_size || row * columns % block == 0;
    };
    return is_cut(range.begin) && is_cut(range.end());
  });
}

void require_rows_of_whole_blocks(const spec::ArchSpec& arch, const Blocks& blocks,
                                  const spec::TensorParallel& part, const std::string& place) {
  std::vector<spec::TensorSpec> tensors = spec::tensor_specs(arch);
  std::erase_if(tensors, [&](const spec::TensorSpec& tensor) {
    return tensor.shape.back() % blocks.values_of(tensor.name) == 0;
  });
  for (int64_t rank = 0; rank < part.size && !tensors.empty(); ++rank) {
    const auto slices = spec::slices_of(arch, {rank, part.size, part.multiple});
    for (const spec::TensorSpec& tensor : tensors) {
      const auto slice = slices.find(tensor.name);
      const int64_t block = blocks.values_of(tensor.name);
      if (slice == slices.end() || is_cut_between_blocks(tensor, slice->second, block)) continue;
      throw ConfigError(
          fmt::format("tensor parallelism cannot divide {}: its format stores blocks of {} values",
                      tensor.name, block),
          place, "");
    }
  }
}

/// The part, with the multiple of inner channels that suits the format.
spec::TensorParallel divided_part(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                                  const StoredBlocks& stored, spec::TensorParallel part,
                                  const std::string& place) {
  require_parts(arch, part.size, place);
  const Blocks blocks(arch, tuning, stored);
  const auto has_broken_rows = [&](const std::string& tensor, int64_t columns) {
    return columns % blocks.values_of(tensor) != 0;
  };
  bool any_broken = has_broken_rows(spec::embedding_module(arch) + ".weight", arch.hidden_size) ||
                    has_broken_rows(std::string(spec::kHeadModule) + ".weight", arch.hidden_size);
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const auto name = [&](const std::string& module) {
      return spec::name_in_layer(arch, layer, module);
    };
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      const std::string tensor = name(linear.module) + ".weight";
      any_broken = any_broken || has_broken_rows(tensor, linear.in_features);
      if (linear.division != Division::kInputs) continue;
      const int64_t block = blocks.values_of(tensor);
      if (linear.segments.front().by == spec::Segment::By::kHeads)
        require_whole_blocks(tensor, linear.in_features, block, part.size, place);
      else
        part.multiple = std::max(part.multiple, block);
    }
    for (const spec::ExpertSpec& experts : spec::layer_experts(arch, layer)) {
      any_broken = any_broken || has_broken_rows(name(experts.module), experts.in_features);
      if (experts.division == Division::kInputs)
        part.multiple = std::max(part.multiple, blocks.values_of(name(experts.module)));
    }
  }
  spec::require_divisible(arch, part, place);
  if (any_broken) require_rows_of_whole_blocks(arch, blocks, part, place);
  return part;
}

/// What could be set instead of a number of parts that does not fit.
/// @param otherwise where no other size of the run is known to fit
std::string fix_of_parts(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                         const StoredBlocks& stored, int64_t parts, const std::string& otherwise) {
  const auto fits = [&](const config::TuningConfig& tried, int64_t size) {
    return refusal_of_parts(arch, tried, stored, size).empty();
  };
  std::vector<std::string> ways;
  for (int64_t size = parts / 2; size > 1 && ways.empty(); --size)
    if (parts % size == 0 && fits(tuning, size))
      ways.push_back(fmt::format("set parallel.tp to {}", size));
  const std::optional<QuantOptions> options = tuning.quant_options();
  if (options && quant_info(options->format).has_blocks) {
    config::TuningConfig smaller = tuning;
    for (int64_t& size = smaller.quant_block_size; (size /= 2) >= kSmallestBlock;) {
      if (!fits(smaller, parts)) continue;
      ways.push_back(fmt::format("set tuning.quant_block_size to {}", size));
      break;
    }
  }
  if (ways.empty() && !otherwise.empty()) return otherwise;
  ways.emplace_back("use, without parallel.tp, parallel.strategy fsdp or pipeline");
  return join(ways, ", or ");
}

/// Commands that use a model divide it, too. What a training step refuses is not for them.
void require_parts_of_model(const spec::ArchSpec& arch, const config::RunConfig& config,
                            const std::string& place) {
  constexpr int64_t kAny = 2;
  config::require_possible(config, {.tp = kAny}, config::KnownBy::kModel, model_facts(arch, config),
                           [&](const config::Divisions&) { return place; });
}

}  // namespace

std::string refusal_of_parts(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                             const StoredBlocks& stored, int64_t parts) {
  try {
    divided_part(arch, tuning, stored, {.size = parts}, {});
  } catch (const ConfigError& error) {
    return error.message();
  }
  return {};
}

std::vector<int64_t> sizes_of_parts(const spec::ArchSpec& arch, const config::RunConfig& config,
                                    const StoredBlocks& stored, int64_t max) {
  try {
    require_parts_of_model(arch, config, {});
  } catch (const ConfigError&) {
    return {};
  }
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= max; ++size)
    if (refusal_of_parts(arch, config.tuning, stored, size).empty()) sizes.push_back(size);
  return sizes;
}

spec::TensorParallel tensor_part(const spec::ArchSpec& arch, const config::RunConfig& config,
                                 const StoredBlocks& stored, spec::TensorParallel part,
                                 const std::string& place) {
  require_parts_of_model(arch, config, place);
  try {
    return divided_part(arch, config.tuning, stored, part, place);
  } catch (const ConfigError& error) {
    throw ConfigError(error.message(), place,
                      fix_of_parts(arch, config.tuning, stored, part.size, error.fix()));
  }
}

}  // namespace sftrun::plan
