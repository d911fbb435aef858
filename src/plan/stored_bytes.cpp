#include "sftrun/plan/stored_bytes.h"

#include <optional>
#include <set>

namespace sftrun::plan {
namespace {

std::optional<QuantFormat> format_of(const spec::QuantizationConfig& config) {
  if (config.method == "fp8") return QuantFormat::kFp8;  // scales of tiles, about as many bytes
  const QuantLayout layout = config.layout();
  if (layout == QuantLayout::kNone) return std::nullopt;
  return first_format_of(layout).format;
}

/// Blocks of 32 values of 4 bits share a scale of 8.
int64_t mxfp4_bytes(int64_t values) {
  constexpr int64_t kBlock = 32, kBlockBytes = 17;
  return values / kBlock * kBlockBytes;
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
  for (const spec::TensorSpec& tensor : spec::tensor_specs(arch)) {
    const int64_t columns = tensor.shape.back(), rows = tensor.numel() / columns;
    if (is_mxfp4 && tensor.role == TensorRole::kExperts)
      files.stored[tensor.name] = static_cast<uint64_t>(mxfp4_bytes(tensor.numel()));
    else if (quantised.contains(tensor.name))
      files.stored[tensor.name] =
          static_cast<uint64_t>(quant_info(*format).bytes(rows, columns, {.format = *format}));
  }
  return files;
}

}  // namespace sftrun::plan
