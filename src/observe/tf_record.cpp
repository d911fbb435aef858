#include "tf_record.h"

#include <array>
#include <bit>
#include <cstring>

namespace sftrun::observe {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr size_t kHeaderBytes = 12, kFooterBytes = 4;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) ? crc >> 1 ^ 0x82F63B78U : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

template <typename Integer>
void append_integer(std::string& out, Integer value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

template <typename Integer>
Integer read_integer(std::string_view bytes) {
  Integer value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char c : data)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(data), 15) + 0xA282EAD8U;
}

void append_tf_record(std::string& out, std::string_view data) {
  const size_t begin = out.size();
  append_integer<uint64_t>(out, data.size());
  append_integer(out, masked_crc32c(std::string_view(out).substr(begin, sizeof(uint64_t))));
  out.append(data);
  append_integer(out, masked_crc32c(data));
}

std::vector<std::string_view> read_tf_records(std::string_view file) {
  std::vector<std::string_view> records;
  while (file.size() >= kHeaderBytes + kFooterBytes) {
    const auto length = read_integer<uint64_t>(file);
    const auto length_crc = read_integer<uint32_t>(file.substr(sizeof length));
    if (length_crc != masked_crc32c(file.substr(0, sizeof length))) break;
    if (length > file.size() - kHeaderBytes - kFooterBytes) break;
    const std::string_view data = file.substr(kHeaderBytes, length);
    const auto data_crc = read_integer<uint32_t>(file.substr(kHeaderBytes + length));
    if (data_crc != masked_crc32c(data)) break;
    records.push_back(data);
    file.remove_prefix(kHeaderBytes + length + kFooterBytes);
  }
  return records;
}

}  // namespace sftrun::observe
