#include "fuzz_entries.h"

#include <algorithm>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/stored_layout.h"

namespace sftrun::weights {
namespace {

template <typename Function>
void expecting_data_errors(Function&& function) {
  try {
    function();
  } catch (const DataError&) {
    // The correct answer to an invalid file.
  }
}

uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<uint64_t>(byte);
  return sum;
}

}  // namespace

namespace {

/// The shape in the file's own quantisation state, as if the configuration agreed with it.
std::vector<int64_t> shape_in_state(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* state = file.find(name + ".quant_state.bitsandbytes__nf4");
  std::vector<int64_t> shape;
  if (state == nullptr) return shape;
  const auto json = nlohmann::json::parse(state->bytes.begin(), state->bytes.end(), nullptr, false);
  if (!json.is_object() || !json.contains("shape") || !json["shape"].is_array()) return shape;
  constexpr int64_t kMax = 4096;
  for (const auto& size : json["shape"]) {
    if (!size.is_number_integer() || size < 0 || size > kMax) return {};
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

/// As the matrix of each layout that it may be.
void read_as_codes(const SafetensorsFile& file, const std::string& name) {
  const FindEntry find = [&](const std::string& of) { return file.find(of); };
  std::vector<int64_t> shape = shape_in_state(file, name);
  if (shape.empty()) shape = find(name)->shape;
  if (shape.size() != 2) return;
  for (const StoredLayout* layout : stored_layouts()) {
    if (!layout->holds(name, find)) continue;
    expecting_data_errors([&] {
      const CodedMatrix matrix = layout->read(name, shape, find, "fuzz", {}).front();
      std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]));
      dequantize(matrix, 0, shape[0] * shape[1], values.data());
    });
  }
}

}  // namespace

uint64_t fuzz_safetensors(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  expecting_data_errors([&] {
    const SafetensorsFile file(bytes, "fuzz");
    for (const SafetensorsEntry& entry : file.entries()) {
      sum += sum_of(entry.bytes);
      read_as_codes(file, entry.name);
    }
  });
  return sum;
}

uint64_t fuzz_gguf(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  expecting_data_errors([&] {
    const GgufFile file(bytes, "fuzz");
    for (const auto& item : file.metadata().items()) {
      expecting_data_errors([&] { sum += file.strings(item.key()).size(); });
      expecting_data_errors([&] { sum += file.floats(item.key()).size(); });
      expecting_data_errors([&] { sum += file.ints(item.key()).size(); });
    }
    for (const GgufTensor& tensor : file.tensors()) {
      sum += sum_of(tensor.bytes);
      if (!tensor.type.readable) continue;
      constexpr int64_t kMax = 4096;
      const int64_t count =
          std::min(tensor.numel(), kMax) / tensor.type.block_size * tensor.type.block_size;
      std::vector<float> numbers(static_cast<size_t>(count));
      dequantize(tensor.type, tensor.bytes.data(), count, numbers.data());
    }
  });
  return sum;
}

uint64_t fuzz_json(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  expecting_data_errors([&] {
    sum = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "fuzz").size();
  });
  return sum;
}

}  // namespace sftrun::weights
