#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Files put together by hand, sound or not.
namespace sftrun::test {

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  return little_endian<uint64_t>(header.size()) + header + std::string(data_bytes, '\1');
}

/// A GGUF file; every part can be told to lie.
struct GgufBuilder {
  uint32_t version = 3;
  std::string keys, tensors;
  uint64_t num_keys = 0, num_tensors = 0;
  size_t data_bytes = 0;

  static std::string text(const std::string& value) {
    return little_endian<uint64_t>(value.size()) + value;
  }

  /// @param value already encoded
  GgufBuilder& key(const std::string& name, uint32_t type, const std::string& value) {
    keys += text(name) + little_endian(type) + value;
    ++num_keys;
    return *this;
  }
  /// @param dimensions in the file's order, fastest first
  GgufBuilder& tensor(const std::string& name, const std::vector<uint64_t>& dimensions,
                      uint32_t type, uint64_t offset) {
    tensors += text(name) + little_endian(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t size : dimensions) tensors += little_endian(size);
    tensors += little_endian(type) + little_endian(offset);
    ++num_tensors;
    return *this;
  }
  std::string bytes() const {
    std::string file = "GGUF" + little_endian(version) + little_endian(num_tensors) +
                       little_endian(num_keys) + keys + tensors;
    file.append((32 - file.size() % 32) % 32, '\0');
    return file + std::string(data_bytes, '\1');
  }
};

}  // namespace sftrun::test
