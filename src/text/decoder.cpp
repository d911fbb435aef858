#include "decoder.h"

#include <fmt/format.h>

#include <charconv>

#include "byte_level.h"
#include "json_access.h"
#include "normalizer.h"
#include "sftrun/core/error.h"
#include "unicode.h"

namespace sftrun::text {
namespace {

std::string replaced(std::string_view text, const std::string& pattern,
                     const std::string& content) {
  if (pattern.empty()) return std::string(text);
  std::string result;
  size_t from = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, from)) {
    result.append(text.substr(from, at - from)).append(content);
    from = at + pattern.size();
  }
  return result.append(text.substr(from));
}

}  // namespace

Decoder::Decoder(const Json& section, const std::string& where) {
  if (section.is_null()) return;
  const std::string type = string_at(section, "type", where);
  if (type == "ByteLevel") {
    kind_ = Kind::kByteLevel;
  } else if (type == "Metaspace") {
    kind_ = Kind::kPieces;
    pattern_ = string_at(section, "replacement", where);
    content_ = " ";
    drops_first_spaces_ = prepend_scheme_of(section, where) != "never";
  } else if (type == "Sequence") {
    read_sequence(section, where);
  } else {
    kind_ = Kind::kPieces;
    read_piece_step(section, where);
  }
}

void Decoder::read_sequence(const Json& section, const std::string& where) {
  bool is_first = true;
  for (const Json& step : array_at(section, "decoders", where)) {
    const std::string type = string_at(step, "type", where);
    if (is_first) kind_ = type == "ByteLevel" ? Kind::kByteLevel : Kind::kPieces;
    if (kind_ == Kind::kPieces) {
      read_piece_step(step, where);
    } else if (type != (is_first ? "ByteLevel" : "Fuse")) {  // ByteLevel fuses already
      throw DataError(fmt::format("the decoder `{}` behind ByteLevel is not supported", type),
                      where);
    }
    is_first = false;
  }
  if (is_first) throw DataError("the decoder is a Sequence of nothing", where);
}

void Decoder::read_piece_step(const Json& step, const std::string& where) {
  const std::string type = string_at(step, "type", where);
  if (type == "Replace" && pattern_.empty() &&
      object_at(step, "pattern", where).contains("String")) {
    pattern_ = string_at(step.at("pattern"), "String", where);
    content_ = string_at(step, "content", where);
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Strip" && strip_.empty()) {
    strip_ = string_at(step, "content", where);
    strip_start_ = int_at(step, "start", where);
    strip_stop_ = int_at(step, "stop", where);
  } else if (type != "Fuse") {
    throw DataError(fmt::format("the decoder `{}` is not supported here", type), where,
                    "supported are ByteLevel, Metaspace, and a Sequence of Replace (of a String), "
                    "ByteFallback, Fuse and Strip");
  }
}

/// <0x0A>: the byte of that value.
std::optional<char> Decoder::byte_of(std::string_view token) const {
  if (!byte_fallback_ || token.size() != 6 || !token.starts_with("<0x") || token[5] != '>')
    return std::nullopt;
  uint8_t value = 0;
  const auto [end, code] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (code != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

std::string Decoder::bytes_of(std::string_view token) const {
  if (kind_ == Kind::kSpaces) return std::string(token);
  if (kind_ == Kind::kPieces) {
    if (const auto byte = byte_of(token)) return std::string(1, *byte);
    return replaced(token, pattern_, content_);
  }
  auto bytes = visible_to_bytes(token);
  return bytes ? std::move(*bytes) : std::string(token);
}

void Decoder::Joiner::take(std::string_view token, std::string_view bytes) {
  const bool is_first = std::exchange(is_first_, false);
  if (decoder_.kind_ == Kind::kSpaces && !is_first) text_ += ' ';
  if (decoder_.kind_ != Kind::kPieces) {
    text_ += bytes;
  } else if (decoder_.byte_of(token)) {
    pending_ += bytes;
  } else {
    flush();
    text_ += is_first && decoder_.drops_first_spaces_ ? replaced(token, decoder_.pattern_, "")
                                                      : std::string(bytes);
  }
}

/// Bytes that make no text become one replacement character each.
void Decoder::Joiner::flush() {
  if (find_invalid_utf8(pending_) == std::string_view::npos) {
    text_ += pending_;
  } else {
    for (size_t i = 0; i < pending_.size(); ++i) text_ += "\xEF\xBF\xBD";
  }
  pending_.clear();
}

std::string Decoder::Joiner::finish() {
  flush();
  if (decoder_.kind_ != Kind::kPieces) return utf8_lossy(text_);
  const std::string& strip = decoder_.strip_;
  std::string_view text = text_;
  if (strip.empty()) return text_;
  for (int64_t i = 0; i < decoder_.strip_start_ && text.starts_with(strip); ++i)
    text.remove_prefix(strip.size());
  for (int64_t i = 0; i < decoder_.strip_stop_ && text.ends_with(strip); ++i)
    text.remove_suffix(strip.size());
  return std::string(text);
}

}  // namespace sftrun::text
