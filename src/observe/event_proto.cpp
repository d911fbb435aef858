#include "event_proto.h"

#include <cstring>

namespace sftrun::observe {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

/// Builds one protocol buffer message field by field.
class Message {
 public:
  Message& varint(uint32_t field, uint64_t value) {
    key(field, kVarint);
    raw_varint(value);
    return *this;
  }
  Message& fixed64(uint32_t field, double value) {
    key(field, kFixed64);
    append(value);
    return *this;
  }
  Message& fixed32(uint32_t field, float value) {
    key(field, kFixed32);
    append(value);
    return *this;
  }
  Message& bytes(uint32_t field, std::string_view value) {
    key(field, kLengthDelimited);
    raw_varint(value.size());
    out_.append(value);
    return *this;
  }
  Message& message(uint32_t field, const Message& value) { return bytes(field, value.out_); }
  std::string take() { return std::move(out_); }

 private:
  void key(uint32_t field, WireType type) { raw_varint(field << 3 | type); }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }
  template <typename T>
  void append(T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    out_.append(raw, sizeof value);
  }
  std::string out_;
};

Message event(double wall_time, int64_t step) {
  Message message;
  message.fixed64(1, wall_time).varint(2, static_cast<uint64_t>(step));
  return message;
}

Message summary_of(const Message& value) {
  return Message().message(1, value);
}

Message value_message(const HparamValue& value) {
  if (const auto* text = std::get_if<std::string>(&value))
    return std::move(Message().bytes(3, *text));
  if (const auto* number = std::get_if<double>(&value))
    return std::move(Message().fixed64(2, *number));
  return std::move(Message().varint(4, std::get<bool>(value) ? 1 : 0));
}

std::optional<uint64_t> read_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (uint32_t shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// Skips the value of a field. @return false if there is none
bool skip(std::string_view& bytes, uint64_t type) {
  uint64_t size = 0;
  switch (type) {
    case kVarint:
      return read_varint(bytes).has_value();
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kLengthDelimited: {
      const auto length = read_varint(bytes);
      if (!length) return false;
      size = *length;
      break;
    }
    default:
      return false;
  }
  if (size > bytes.size()) return false;
  bytes.remove_prefix(size);
  return true;
}

}  // namespace

std::string encode_file_version(double wall_time) {
  return event(wall_time, 0).bytes(3, "brain.Event:2").take();
}

std::string encode_scalar(double wall_time, int64_t step, std::string_view tag, float value) {
  return event(wall_time, step)
      .message(5, summary_of(Message().bytes(1, tag).fixed32(2, value)))
      .take();
}

std::string encode_text(double wall_time, int64_t step, std::string_view tag,
                        std::string_view text) {
  constexpr uint64_t kDtString = 7;
  const Message shape = Message().message(2, Message().varint(1, 1));  // shape [1]
  const Message tensor = Message().varint(1, kDtString).message(2, shape).bytes(8, text);
  const Message metadata = Message().message(1, Message().bytes(1, "text"));
  const Message value = Message().bytes(1, tag).message(8, tensor).message(9, metadata);
  return event(wall_time, step).message(5, summary_of(value)).take();
}

std::string encode_hparams(double wall_time, int64_t step,
                           const std::vector<std::pair<std::string, HparamValue>>& hparams) {
  Message session;  // SessionStartInfo
  for (const auto& [name, value] : hparams)
    session.message(1, Message().bytes(1, name).message(2, value_message(value)));
  session.fixed64(5, wall_time);
  std::string content = Message().message(3, session).take();  // HParamsPluginData, version 0
  const Message plugin = Message().bytes(1, "hparams").bytes(2, content);
  constexpr uint64_t kDtFloat = 1;
  const Message shape = Message().message(2, Message().varint(1, 0));  // shape [0]
  const Message value = Message()
                            .bytes(1, "_hparams_/session_start_info")
                            .message(8, Message().varint(1, kDtFloat).message(2, shape))
                            .message(9, Message().message(1, plugin));
  return event(wall_time, step).message(5, summary_of(value)).take();
}

std::string encode_session_start(double wall_time, int64_t step) {
  constexpr uint64_t kStart = 1;
  return event(wall_time, step).message(7, Message().varint(1, kStart)).take();
}

std::optional<int64_t> event_step(std::string_view event) {
  int64_t step = 0;
  while (!event.empty()) {
    const auto key = read_varint(event);
    if (!key) return std::nullopt;
    if (*key == (2U << 3 | kVarint)) {
      const auto value = read_varint(event);
      if (!value) return std::nullopt;
      step = static_cast<int64_t>(*value);
    } else if (!skip(event, *key & 7U)) {
      return std::nullopt;
    }
  }
  return step;
}

}  // namespace sftrun::observe
