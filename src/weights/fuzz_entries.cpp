#include "fuzz_entries.h"

#include <algorithm>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {
namespace {

template <typename Function>
void expecting_data_errors(Function&& function) {
  try {
    function();
  } catch (const DataError&) {
    // What a reader answers to a file that is not sound.
  }
}

uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<uint64_t>(byte);
  return sum;
}

}  // namespace

uint64_t fuzz_safetensors(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  expecting_data_errors([&] {
    const SafetensorsFile file(bytes, "fuzz");
    for (const SafetensorsEntry& entry : file.entries()) sum += sum_of(entry.bytes);
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
      constexpr int64_t kMost = 4096;
      const int64_t count =
          std::min(tensor.numel(), kMost) / tensor.type.block_size * tensor.type.block_size;
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
