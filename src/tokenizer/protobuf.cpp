#include "protobuf.h"

#include <cstring>

#include "sftrun/core/error.h"

namespace sftrun::tokenizer {
namespace {

[[noreturn]] void fail_kind(const std::string& where) {
  throw DataError("not a SentencePiece model: a field has another type", where);
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

int64_t ProtobufReader::Field::as_int(const std::string& where) const {
  if (wire != Wire::kVarint) fail_kind(where);
  return static_cast<int64_t>(value);
}

float ProtobufReader::Field::as_float(const std::string& where) const {
  if (wire != Wire::kFixed32) fail_kind(where);
  const auto bits = static_cast<uint32_t>(value);
  float out = 0;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

std::string_view ProtobufReader::Field::as_bytes(const std::string& where) const {
  if (wire != Wire::kBytes) fail_kind(where);
  return bytes;
}

void ProtobufReader::fail() const {
  throw DataError("not a SentencePiece model: the file is damaged or has another format", where_);
}

uint64_t ProtobufReader::read_varint() {
  constexpr int kMaxBytes = 10;
  uint64_t value = 0;
  for (int i = 0; i < kMaxBytes; ++i) {
    const auto byte = static_cast<uint8_t>(take(1)[0]);
    value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
    if (byte < 0x80) return value;
  }
  fail();
}

std::string_view ProtobufReader::take(uint64_t num_bytes) {
  if (num_bytes > rest_.size()) fail();
  const std::string_view out = rest_.substr(0, num_bytes);
  rest_.remove_prefix(num_bytes);
  return out;
}

std::optional<ProtobufReader::Field> ProtobufReader::next() {
  if (rest_.empty()) return std::nullopt;
  const uint64_t tag = read_varint();
  Field field{.number = tag >> 3, .wire = static_cast<Field::Wire>(tag & 7)};
  if (field.number == 0) fail();
  switch (field.wire) {
    case Field::Wire::kVarint:
      field.value = read_varint();
      return field;
    case Field::Wire::kFixed64:
      field.value = little_endian(take(8));
      return field;
    case Field::Wire::kBytes:
      field.bytes = take(read_varint());
      return field;
    case Field::Wire::kFixed32:
      field.value = little_endian(take(4));
      return field;
  }
  fail();  // groups, which the format does not use
}

}  // namespace sftrun::tokenizer
