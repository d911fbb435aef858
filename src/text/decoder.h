#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sftrun/text/chat_template.h"

namespace sftrun::text {

/// The `decoder` section of a tokenizer.json: how tokens become text again. ByteLevel; or pieces as
/// SentencePiece has them (Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip in
/// this order); or none. Immutable.
class Decoder {
 public:
  /// @throws DataError naming a kind that is not supported
  Decoder(const Json& section, const std::string& where);

  /// The bytes that a token's text stands for.
  std::string bytes_of(std::string_view token) const;

  /// Tokens of one text, in order.
  class Joiner {
   public:
    explicit Joiner(const Decoder& decoder) : decoder_(decoder) {}
    /// @param bytes what `bytes_of` gave for the token
    void take(std::string_view token, std::string_view bytes);
    std::string finish();

   private:
    void flush();
    const Decoder& decoder_;
    std::string text_, pending_;  // pending: bytes of one or more characters
    bool is_first_ = true;
  };

 private:
  enum class Kind : uint8_t {
    kSpaces,     // none: texts joined by spaces
    kByteLevel,  // visible bytes
    kPieces,
  };
  void read_sequence(const Json& section, const std::string& where);
  void read_piece_step(const Json& step, const std::string& where);
  std::optional<char> byte_of(std::string_view token) const;

  Kind kind_ = Kind::kSpaces;
  std::string pattern_, content_;  // Replace; empty: none
  bool byte_fallback_ = false;
  bool drops_first_spaces_ = false;  // Metaspace: the first token begins without
  std::string strip_;                // Strip's character
  int64_t strip_start_ = 0, strip_stop_ = 0;
};

}  // namespace sftrun::text
