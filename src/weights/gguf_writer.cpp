#include "sftrun/weights/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "gguf_values.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

template <typename T>
std::string raw(const T& value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string text(std::string_view value) {
  return raw<uint64_t>(value.size()) + std::string(value);
}

std::string array(uint32_t type, size_t count, std::string elements) {
  return raw<uint32_t>(type) + raw<uint64_t>(count) + std::move(elements);
}

template <typename T>
std::string elements(std::span<const T> values) {
  std::string bytes(values.size_bytes(), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size_bytes());
  return bytes;
}

uint64_t padding_after(uint64_t size) {
  return (kGgufAlignment - size % kGgufAlignment) % kGgufAlignment;
}

[[noreturn]] void fail_no_type(const std::string& key, const json& value) {
  throw DataError(fmt::format("GGUF metadata cannot store `{}` {}", key, excerpt(value.dump())));
}

}  // namespace

void GgufMetadata::set(const std::string& key, uint32_t type, std::string value) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) {
    entries_.push_back({key, std::move(value), type});
  } else {
    *found = {key, std::move(value), type};
  }
}

void GgufMetadata::set_u32(const std::string& key, uint32_t value) {
  set(key, kU32, raw(value));
}
void GgufMetadata::set_f32(const std::string& key, float value) {
  set(key, kF32, raw(value));
}
void GgufMetadata::set_bool(const std::string& key, bool value) {
  set(key, kBool, raw<uint8_t>(value ? 1 : 0));
}
void GgufMetadata::set_string(const std::string& key, std::string_view value) {
  set(key, kString, text(value));
}

void GgufMetadata::set_strings(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) bytes += text(value);
  set(key, kArray, array(kString, values.size(), std::move(bytes)));
}

void GgufMetadata::set_floats(const std::string& key, std::span<const float> values) {
  set(key, kArray, array(kF32, values.size(), elements(values)));
}

void GgufMetadata::set_ints(const std::string& key, std::span<const int32_t> values) {
  set(key, kArray, array(kI32, values.size(), elements(values)));
}

void GgufMetadata::set_json(const std::string& key, const json& value) {
  const auto is_u32 = [](const json& number) {
    return number.is_number_integer() && number >= 0 &&
           number <= std::numeric_limits<uint32_t>::max();
  };
  if (value.is_boolean()) return set_bool(key, value.get<bool>());
  if (value.is_string()) return set_string(key, value.get<std::string>());
  if (is_u32(value)) return set_u32(key, value.get<uint32_t>());
  if (value.is_number_float()) return set_f32(key, value.get<float>());
  const auto all = [&](auto&& holds) {
    return value.is_array() && std::all_of(value.begin(), value.end(), holds);
  };
  if (all([](const json& item) { return item.is_boolean(); })) {
    std::string flags;
    for (const json& flag : value) flags += flag.get<bool>() ? '\1' : '\0';
    return set(key, kArray, array(kBool, value.size(), std::move(flags)));
  }
  if (all([&](const json& item) {
        return is_u32(item) && item <= std::numeric_limits<int32_t>::max();
      }))
    return set_ints(key, value.get<std::vector<int32_t>>());
  if (all([](const json& item) { return item.is_number(); }))
    return set_floats(key, value.get<std::vector<float>>());
  if (all([](const json& item) { return item.is_string(); }))
    return set_strings(key, value.get<std::vector<std::string>>());
  fail_no_type(key, value);
}

void GgufMetadata::set_stored(const std::string& key, uint32_t type,
                              std::span<const std::byte> bytes) {
  set(key, type, elements(bytes));
}

std::string GgufMetadata::bytes() const {
  std::string result;
  for (const Entry& entry : entries_) result += text(entry.key) + raw(entry.type) + entry.value;
  return result;
}

uint64_t GgufTensorToWrite::bytes() const {
  const std::optional<int64_t> numel = checked_numel(shape);
  SFTRUN_CHECK(numel.has_value() && !shape.empty() && shape.back() % type.block_size == 0);
  return static_cast<uint64_t>(*numel / type.block_size * type.block_bytes);
}

void write_gguf(AtomicFile& file, const GgufMetadata& metadata,
                const std::vector<GgufTensorToWrite>& tensors) {
  constexpr uint32_t kVersion = 3;
  std::string header = raw(kGgufMagic) + raw(kVersion) + raw<uint64_t>(tensors.size()) +
                       raw<uint64_t>(metadata.size()) + metadata.bytes();
  uint64_t offset = 0;
  for (const GgufTensorToWrite& tensor : tensors) {
    header += text(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      header += raw(static_cast<uint64_t>(*size));
    header += raw(tensor.type.id) + raw(offset);
    offset += tensor.bytes() + padding_after(tensor.bytes());
  }
  header.append(padding_after(header.size()), '\0');
  file.write(header);
  std::vector<std::byte> buffer;
  for (const GgufTensorToWrite& tensor : tensors) {
    buffer.resize(tensor.bytes());
    tensor.produce(buffer.data());
    file.write(buffer.data(), buffer.size());
    file.write(std::string(padding_after(buffer.size()), '\0'));
  }
}

void write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                const std::vector<GgufTensorToWrite>& tensors) {
  AtomicFile file(path);
  write_gguf(file, metadata, tensors);
  file.commit();
}

}  // namespace sftrun::weights
