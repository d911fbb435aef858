#include "hf_quantised.h"

#include <algorithm>

#include "convert.h"
#include "eight_bits.h"
#include "four_bits.h"

namespace sftrun::weights {
namespace {

std::vector<std::span<const std::byte>> parts_of(const FourBits& matrix) {
  return {matrix.packed, matrix.absmax, matrix.nested_absmax};
}
std::vector<std::span<const std::byte>> parts_of(const EightBitRows& matrix) {
  return {matrix.codes, matrix.scales};
}

}  // namespace

HfQuantised find_quantised(const std::vector<spec::TensorSpec>& specs, const HfFiles& files) {
  HfQuantised found;
  const FindEntry find = [&](const std::string& name) { return files.find(name); };
  const auto add = [&](const std::string& name, HfQuantisedMatrix matrix,
                       const std::vector<std::string>& additional) {
    found.matrices.emplace(name, std::move(matrix));
    found.additional.insert(additional.begin(), additional.end());
  };
  for (const spec::TensorSpec& spec : specs) {
    const std::string& name = spec.name;
    if (!spec.parts.empty() || spec.layout.reorders()) continue;
    const auto where = [&] { return files.at(name).file->string(); };
    if (has_4bit_codes(name, find))
      add(name, read_four_bits(name, spec.shape, find, where()), beside_four_bits(name, find));
    else if (has_8bit_codes(name, find))
      add(name, read_eight_bits(name, spec.shape, find, where()), beside_eight_bits(name, find));
  }
  return found;
}

std::string stored_format_of(const HfQuantisedMatrix& matrix) {
  return std::visit(
      [](const auto& stored) { return std::string(quant_info(stored.format).stored_name); },
      matrix);
}

std::vector<std::span<const std::byte>> stored_parts(const HfQuantisedMatrix& matrix) {
  return std::visit([](const auto& stored) { return parts_of(stored); }, matrix);
}

void read_quantised(const HfQuantisedMatrix& matrix, DType dtype, std::byte* destination,
                    int64_t numel) {
  constexpr int64_t kChunk = 8192;
  std::vector<float> wide(static_cast<size_t>(std::min(numel, kChunk)));
  for (int64_t done = 0; done < numel; done += kChunk) {
    const int64_t count = std::min(numel - done, kChunk);
    std::visit([&](const auto& stored) { dequantize(stored, done, count, wide.data()); }, matrix);
    convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype,
            destination + done * size_of(dtype), count);
  }
}

}  // namespace sftrun::weights
