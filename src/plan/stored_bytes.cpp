#include "sftrun/plan/stored_bytes.h"

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
  if (format) tuning.quant = config::quant_of(*format);
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
      const QuantOptions options{.format = *format};
      const QuantFormatInfo& info = quant_info(*format);
      add(tensor.name, info.bytes(rows, columns, options),
          info.has_blocks        ? options.block_size
          : config.block.empty() ? 1
                                 : kFp8LeastBlock);
    }
  }
  return files;
}

}  // namespace sftrun::plan
