#include "hf_quantised.h"

#include <algorithm>

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

}  // namespace

HfQuantised find_quantised(const std::vector<spec::TensorSpec>& specs, const HfFiles& files) {
  HfQuantised found;
  const FindEntry find = [&](const std::string& name) { return files.find(name); };
  for (const spec::TensorSpec& spec : specs) {
    const std::string& name = spec.name;
    if (!spec.parts.empty() || spec.layout.reorders()) continue;
    const StoredLayout* layout = layout_that_holds(name, find);
    if (layout == nullptr) continue;
    const HfFiles::Located& codes = files.at(layout->codes_name(name));
    found.matrices[name] = {layout->read(name, spec.shape, find, codes.file->string()),
                            stored_name_of(*layout, *codes.entry)};
    for (const std::string& part : layout->additional(name, find)) found.parts.insert(part);
    if (!layout->codes_ending.empty()) found.parts.insert(layout->codes_name(name));
  }
  return found;
}

std::vector<std::span<const std::byte>> stored_parts(const CodedMatrix& matrix) {
  return {matrix.codes, matrix.scales, matrix.nested_scales};
}

void read_quantised(const CodedMatrix& matrix, DType dtype, std::byte* destination, int64_t numel) {
  constexpr int64_t kChunk = 8192;
  std::vector<float> wide(static_cast<size_t>(std::min(numel, kChunk)));
  for (int64_t done = 0; done < numel; done += kChunk) {
    const int64_t count = std::min(numel - done, kChunk);
    dequantize(matrix, done, count, wide.data());
    convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype,
            destination + done * size_of(dtype), count);
  }
}

}  // namespace sftrun::weights
