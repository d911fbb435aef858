#include "sftrun/plan/stored_bytes.h"

#include <algorithm>
#include <optional>
#include <set>

namespace sftrun::plan {
namespace {

std::optional<QuantFormat> format_of(const spec::QuantizationConfig& config) {
  const QuantLayout layout = config.layout();
  if (layout == QuantLayout::kNone) return std::nullopt;
  if (layout == QuantLayout::kFp8Blocks) return QuantFormat::kFp8;  // bytes of rows, not of blocks
  return first_format_of(layout).format;
}

/// Of a row that has `columns`.
QuantOptions options_of(QuantFormat format, const spec::QuantizationConfig& config,
                        int64_t columns) {
  QuantOptions options{.format = format};
  if (format != QuantFormat::kInt4Groups) return options;
  const int64_t group = config.group_sizes.empty() ? -1 : config.group_sizes.front();
  options.block_size = group > 0 ? std::min(group, columns) : columns;
  return options;
}

int64_t columns_together(const QuantOptions& options, const spec::QuantizationConfig& config,
                         int64_t columns) {
  if (options.format == QuantFormat::kInt4Groups)
    return int4_columns_together(options.block_size, columns);
  if (quant_info(options.format).has_blocks) return options.block_size;
  return config.block.empty() ? 1 : kFp8LeastBlock;
}

/// Blocks of 32 values of 4 bits share a scale of 8.
constexpr int64_t kMxfp4Block = 32, kMxfp4BlockBytes = 17;

int64_t mxfp4_bytes(int64_t values) {
  return values / kMxfp4Block * kMxfp4BlockBytes;
}

}  // namespace

AssumedFiles assumed_files(const spec::ArchSpec& arch, const spec::QuantizationConfig& config) {
  AssumedFiles files;
  const std::optional<QuantFormat> format = format_of(config);
  const bool is_mxfp4 = config.method == "mxfp4";
  if (!format && !is_mxfp4) return files;
  files.kind = is_mxfp4 ? "mxfp4" : "stored";
  config::TuningConfig tuning;
  // For the names alone
  const bool is_made = format && quant_info(*format).is_made;
  if (format) tuning.quant = config::quant_of(is_made ? *format : QuantFormat::kInt8);
  const std::set<std::string> quantised =
      format ? quantised_names(arch, tuning) : std::set<std::string>();
  const auto add = [&](const std::string& name, int64_t bytes, int64_t block) {
    files.stored[name] = static_cast<uint64_t>(bytes);
    files.blocks[name] = block;
  };
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    const int64_t columns = tensor.shape.back(), rows = tensor.numel() / columns;
    if (is_mxfp4 && tensor.role == TensorRole::kExperts) {
      add(tensor.name, mxfp4_bytes(tensor.numel()), kMxfp4Block);
    } else if (quantised.contains(tensor.name)) {
      const QuantOptions options = options_of(*format, config, columns);
      add(tensor.name, quant_info(*format).bytes(rows, columns, options),
          columns_together(options, config, columns));
    }
  }
  return files;
}

}  // namespace sftrun::plan
