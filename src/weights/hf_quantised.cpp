#include "hf_quantised.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/stored_layout.h"

namespace sftrun::weights {
namespace {

/// nullptr: not quantised
const StoredLayout* layout_that_holds(const std::string& name, const FindEntry& find) {
  const auto layouts = stored_layouts();
  const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const StoredLayout* layout) {
    return layout->holds(name, find);
  });
  return found == layouts.end() ? nullptr : *found;
}

/// The name of the matrix in the files, also where its codes have another ending.
std::string stored_name_of(const StoredLayout& layout, const SafetensorsEntry& codes) {
  if (layout.codes_ending.empty()) return codes.name;
  return codes.name.substr(0, codes.name.size() - layout.codes_ending.size()) + ".weight";
}

/// The quantised matrices that a model's tensors are in.
class Finder {
 public:
  Finder(const HfFiles& files, const spec::QuantizationConfig& config)
      : files_(files),
        config_(config),
        find_([&](const std::string& name) { return files.find(name); }) {}

  void add(const spec::TensorSpec& spec) {
    if (!spec.parts.empty()) return add_parts(spec);
    if (const StoredLayout* layout = layout_that_holds(spec.name, find_))
      found.matrices[spec.name] = {read(*layout, spec.name, spec.shape),
                                   stored_name_of(*layout, entry_of(*layout, spec.name))};
  }

  /// GPTQ's older writers add a bias of zeros to every layer, also of models without biases.
  void leave_out_empty_biases(const std::vector<spec::TensorSpec>& specs) {
    std::set<std::string> names;
    for (const spec::TensorSpec& spec : specs) names.insert(spec.name);
    for (const auto& [name, matrix] : found.matrices) {
      if (matrix.parts.front().layout != QuantLayout::kGptq) continue;
      const std::string bias = module_of_weight(name) + ".bias";
      const SafetensorsEntry* entry = names.contains(bias) ? nullptr : files_.find(bias);
      const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
      if (entry != nullptr && std::ranges::all_of(entry->bytes, is_zero)) found.parts.insert(bias);
    }
  }

  HfQuantised found;

 private:
  const SafetensorsEntry& entry_of(const StoredLayout& layout, const std::string& name) const {
    return *files_.at(layout.codes_name(name)).entry;
  }

  std::vector<CodedMatrix> read(const StoredLayout& layout, const std::string& name,
                                const std::vector<int64_t>& shape) {
    const std::string codes = layout.codes_name(name);
    for (const std::string& part : layout.additional(name, find_)) found.parts.insert(part);
    if (codes != name) found.parts.insert(codes);
    return layout.read(name, shape, find_, files_.at(codes).file->string(), config_);
  }

  /// All parts in one layout, whose matrices can be put below one another.
  void add_parts(const spec::TensorSpec& spec) {
    const StoredLayout* layout = layout_that_holds(spec.parts.front().name, find_);
    if (layout == nullptr) return;
    HfQuantisedMatrix matrix;
    for (const spec::TensorPart& part : spec.parts) {
      if (layout_that_holds(part.name, find_) != layout) refuse_mixed(spec, part.name);
      for (CodedMatrix& codes : read(*layout, part.name, part.shape)) {
        if (codes.block_size > 0 || !codes.column_groups.empty())
          refuse_experts(*layout, part.name, codes);
        const CodedMatrix& first = matrix.parts.empty() ? codes : matrix.parts.front();
        if (codes.group != first.group) refuse_mixed(spec, part.name);
        matrix.parts.push_back(std::move(codes));
      }
      found.parts.insert(part.name);
    }
    found.matrices[spec.name] = std::move(matrix);
  }

  /// Blocks that cross rows, and groups in another order for each matrix (g_idx), cannot be put below one
  /// another.
  [[noreturn]] void refuse_experts(const StoredLayout& layout, const std::string& name,
                                   const CodedMatrix& codes) const {
    throw DataError(
        fmt::format("`{}` is in {}{}, which is not supported for the tensors of single "
                    "experts",
                    name, quant_info(codes.format).stored_name,
                    codes.group > 0 ? " with columns in the order of a g_idx (desc_act)" : ""),
        files_.at(layout.codes_name(name)).file->string(),
        "use the unquantised checkpoint; `tuning.quant` quantises it when it is loaded");
  }

  [[noreturn]] void refuse_mixed(const spec::TensorSpec& spec, const std::string& other) const {
    const auto located = files_.tensors().find(other);
    throw DataError(
        fmt::format("`{}` is quantised, but `{}` is not in the same format; the matrices of a "
                    "layer's experts must agree",
                    spec.parts.front().name, other),
        located == files_.tensors().end() ? std::string() : located->second.file->string(),
        "use a checkpoint whose experts are all in one format");
  }

  const HfFiles& files_;
  const spec::QuantizationConfig& config_;
  const FindEntry find_;
};

}  // namespace

int64_t HfQuantisedMatrix::values_before(size_t part) const {
  int64_t values = 0;
  for (size_t i = 0; i < part; ++i) values += parts[i].rows * parts[i].columns;
  return values;
}

PackedMatrix HfQuantisedMatrix::packed() const {
  if (parts.size() == 1) return parts.front();
  return CodedParts{parts};
}

HfQuantised find_quantised(const std::vector<spec::TensorSpec>& specs, const HfFiles& files,
                           const spec::QuantizationConfig& config) {
  Finder finder(files, config);
  for (const spec::TensorSpec& spec : specs)
    if (!spec.layout.reorders()) finder.add(spec);
  finder.leave_out_empty_biases(specs);
  return std::move(finder.found);
}

std::vector<std::span<const std::byte>> stored_parts(const CodedMatrix& matrix) {
  return {matrix.codes, matrix.scales, matrix.nested_scales, matrix.zeros, matrix.column_groups};
}

void read_quantised(const CodedMatrix& matrix, DType dtype, std::byte* destination) {
  constexpr int64_t kChunk = 8192;
  const int64_t numel = matrix.rows * matrix.columns;
  std::vector<float> wide(static_cast<size_t>(std::min(numel, kChunk)));
  for (int64_t done = 0; done < numel; done += kChunk) {
    const int64_t count = std::min(numel - done, kChunk);
    dequantize(matrix, done, count, wide.data());
    convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype,
            destination + done * size_of(dtype), count);
  }
}

}  // namespace sftrun::weights
