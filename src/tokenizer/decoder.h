#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// One step of a decoder. Immutable.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  /// The tokens of a whole text, in order; their number may change.
  virtual void run(std::vector<std::string>& tokens) const = 0;
  /// The step's result for one token within a text, if it does not depend on other tokens.
  virtual std::string bytes_of(std::string token) const = 0;
};

/// The `decoder` section of a tokenizer.json, which converts tokens to text. Immutable.
class Decoder {
 public:
  /// @throws DataError for a type that the library does not know
  Decoder(const Json& section, const std::string& where);

  /// The bytes of a token within a text.
  std::string bytes_of(std::string_view token) const;
  /// Whether the bytes of a text are the bytes of its tokens, one after the other.
  bool is_plain() const { return is_plain_; }
  /// The text of tokens, where they are not `is_plain`.
  std::string join(std::vector<std::string> tokens) const;

 private:
  void read(const Json& section, const std::string& where);
  std::vector<std::unique_ptr<DecoderStep>> steps_;  ///< none: tokens with spaces between them
  bool is_plain_ = false;
};

/// The step that a section of a type other than Sequence describes (decoder_steps.cpp).
/// @throws DataError for a type that the library does not know
std::unique_ptr<DecoderStep> make_decoder_step(const Json& section, const std::string& where);

}  // namespace sftrun::tokenizer
