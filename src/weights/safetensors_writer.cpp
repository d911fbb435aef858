#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "sftrun/core/dtype.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/utf8.h"
#include "sftrun/weights/safetensors.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kDataAlignment = 64;  // aligns mapped tensors of round sizes

uint64_t bytes_of(const TensorToWrite& tensor) {
  const std::optional<int64_t> numel = checked_numel(tensor.shape);
  SFTRUN_CHECK(numel.has_value() && size_of(tensor.dtype) > 0);
  return static_cast<uint64_t>(*numel * size_of(tensor.dtype));
}

/// Header length and header, padded with spaces as the format allows.
std::string header_of(const std::vector<const TensorToWrite*>& order) {
  ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  uint64_t offset = 0;
  for (const TensorToWrite* tensor : order) {
    const uint64_t end = offset + bytes_of(*tensor);
    SFTRUN_CHECK(!header.contains(tensor->name));
    header[tensor->name] = {{"dtype", safetensors_name_of(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (8 + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t length = text.size();
  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(length >> (8 * i));
  return prefix + text;
}

using Shard = std::vector<TensorToWrite>;

/// Fills shards in order. A tensor over the limit gets its own shard and does not end the current
/// one.
std::vector<Shard> split_into_shards(const std::vector<TensorToWrite>& tensors,
                                     uint64_t max_shard_bytes) {
  std::vector<Shard> shards;
  Shard current;
  uint64_t current_bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t size = bytes_of(tensor);
    if (size > max_shard_bytes) {
      shards.push_back({tensor});
      continue;
    }
    if (current_bytes + size > max_shard_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(tensor);
    current_bytes += size;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

void remove_earlier_save(const fs::path& directory, const std::set<std::string>& written) {
  static const PythonRegex kOurs(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)",
                                 PythonRegex::Matches::kWhole);
  std::error_code code;
  for (const fs::path& file : readable_entries_of(directory)) {
    const std::string name = file.filename().string();
    if (is_valid_utf8(name) && kOurs.matches(name) && !written.contains(name))
      fs::remove(file, code);
  }
}

/// Values are finite in fp32; those beyond 65504 have become infinite in fp16.
void require_finite_fp16(const std::string& name, const std::byte* data, size_t bytes) {
  constexpr uint16_t kExponent = 0x7c00;
  for (size_t i = 0; i < bytes; i += sizeof(uint16_t)) {
    uint16_t half;
    std::memcpy(&half, data + i, sizeof(half));
    if ((half & kExponent) != kExponent) continue;
    throw DataError(
        fmt::format("tensor `{}` has values that fp16 cannot represent (beyond 65504, or NaN)",
                    name),
        {}, "write bf16 or f32");
  }
}

/// Wider types first, so that each tensor is aligned to its type.
std::vector<const TensorToWrite*> writing_order(const std::vector<TensorToWrite>& tensors) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    return size_of(a->dtype) > size_of(b->dtype);
  });
  return order;
}

}  // namespace

void refuse_overflow(std::vector<TensorToWrite>& tensors) {
  for (TensorToWrite& tensor : tensors) {
    if (tensor.dtype != DType::kF16) continue;
    tensor.produce = [produce = tensor.produce, name = tensor.name,
                      bytes = bytes_of(tensor)](void* destination) {
      produce(destination);
      require_finite_fp16(name, static_cast<const std::byte*>(destination), bytes);
    };
  }
}

void write_safetensors(const fs::path& path, const std::vector<TensorToWrite>& tensors) {
  const std::vector<const TensorToWrite*> order = writing_order(tensors);
  AtomicFile file(path);
  file.write(header_of(order));
  std::vector<std::byte> buffer;
  for (const TensorToWrite* tensor : order) {
    buffer.resize(bytes_of(*tensor));
    tensor->produce(buffer.data());
    file.write(buffer.data(), buffer.size());
  }
  file.commit();
}

std::vector<TensorToWrite> held_in_memory(const std::vector<TensorToWrite>& tensors) {
  std::vector<TensorToWrite> held;
  for (const TensorToWrite* tensor : writing_order(tensors)) {
    const uint64_t bytes = bytes_of(*tensor);
    const auto values = std::make_shared_for_overwrite<std::byte[]>(bytes);
    tensor->produce(values.get());
    held.push_back({tensor->name, tensor->dtype, tensor->shape, [values, bytes](void* destination) {
                      std::memcpy(destination, values.get(), bytes);
                    }});
  }
  return held;
}

uint64_t total_bytes(const std::vector<TensorToWrite>& tensors) {
  uint64_t bytes = 0;
  for (const TensorToWrite& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

void produce_without_file(const std::vector<TensorToWrite>& tensors) {
  std::vector<std::byte> buffer;
  for (const TensorToWrite* tensor : writing_order(tensors)) {
    buffer.resize(bytes_of(*tensor));
    tensor->produce(buffer.data());
  }
}

void produce_shards_without_files(const std::vector<TensorToWrite>& tensors,
                                  uint64_t max_shard_bytes) {
  for (const auto& shard : split_into_shards(tensors, max_shard_bytes)) produce_without_file(shard);
}

void write_sharded_safetensors(const fs::path& directory, const std::vector<TensorToWrite>& tensors,
                               uint64_t max_shard_bytes) {
  make_directories(directory);
  const std::vector<Shard> shards = split_into_shards(tensors, max_shard_bytes);
  std::set<std::string> written;
  ordered_json weight_map = ordered_json::object();
  uint64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(directory / name, shards[i]);
    written.insert(name);
    for (const TensorToWrite& tensor : shards[i]) {
      weight_map[tensor.name] = name;
      total_bytes += bytes_of(tensor);
    }
  }
  if (shards.size() > 1) {
    const std::string name = "model.safetensors.index.json";
    const ordered_json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", weight_map}};
    write_file_atomically(directory / name, index.dump(2) + "\n");
    written.insert(name);
  }
  remove_earlier_save(directory, written);
}

}  // namespace sftrun::weights
