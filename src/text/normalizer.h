#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nfc.h"
#include "sftrun/text/chat_template.h"

namespace sftrun::text {

/// The `normalizer` section of a tokenizer.json: NFC, Prepend, Replace of a literal, and Sequences
/// of them. Immutable.
class Normalizer {
 public:
  Normalizer() = default;
  /// @throws DataError naming a kind that is not supported
  Normalizer(const Json& section, const std::string& where);

  /// Whether the text stays as it is, found without normalising. May answer false for one that
  /// does.
  bool surely_keeps(std::string_view text) const;
  /// @param text valid UTF-8, not empty   @param with_sources else `sources` stays empty
  NormalizedText run(std::string_view text, bool with_sources) const;
  std::string operator()(const std::string& text) const {
    return text.empty() ? text : run(text, false).text;
  }

 private:
  enum class Kind : uint8_t { kNfc, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string pattern, content;
  };
  void read(const Json& section, const std::string& where);
  static NormalizedText run_step(const Step& step, std::string_view text, bool with_sources);
  std::vector<Step> steps_;
};

/// "always", "first" or "never" of a Metaspace section, pre-tokenizer or decoder; files older than
/// `prepend_scheme` say `add_prefix_space`.
std::string prepend_scheme_of(const Json& section, const std::string& where);

/// The `pre_tokenizer` Metaspace (SentencePiece's way with spaces): writes spaces as a visible
/// character, and one in front of the text.
class Metaspace {
 public:
  /// @throws DataError
  Metaspace(const Json& section, const std::string& where);
  /// @param is_first whether the piece begins the original text
  NormalizedText run(std::string_view piece, bool is_first, bool with_sources) const;

 private:
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string replacement_;
  Prepend prepend_ = Prepend::kAlways;
};

/// Sources of a text that was made from another text that has sources itself.
std::vector<ByteSpan> through(const std::vector<ByteSpan>& outer,
                              const std::vector<ByteSpan>& inner);

}  // namespace sftrun::text
