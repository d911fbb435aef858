#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sftrun::tokenizer {

/// Reads a protobuf message field by field (protobuf.dev/programming-guides/encoding).
class ProtobufReader {
 public:
  ProtobufReader(std::string_view message, const std::string& where)
      : rest_(message), where_(where) {}

  struct Field {
    enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
    uint64_t number = 0;
    Wire wire = Wire::kVarint;
    uint64_t value = 0;      ///< for all kinds but kBytes
    std::string_view bytes;  ///< for kBytes

    /// The value of a wanted kind.   @throws DataError if the field has another kind
    int64_t as_int(const std::string& where) const;
    float as_float(const std::string& where) const;
    std::string_view as_bytes(const std::string& where) const;
  };
  /// The next field; nullopt at the end.   @throws DataError if it is not a message
  std::optional<Field> next();

 private:
  uint64_t read_varint();
  std::string_view take(uint64_t num_bytes);
  [[noreturn]] void fail() const;

  std::string_view rest_;
  const std::string& where_;
};

}  // namespace sftrun::tokenizer
