#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normal_forms.h"
#include "place.h"
#include "splitters.h"

namespace sftrun::tokenizer {

/// A part of a text, and the position of that text in the encoded text.
struct Word {
  std::string_view bytes;
  uint32_t begin = 0;            ///< in its text
  const Place* place = nullptr;  ///< position of its text; null: its text is the encoded text
};

class WordSink {
 public:
  virtual ~WordSink() = default;
  virtual void take(const Word& word) = 0;
};

/// Changes pieces before they are split, as Metaspace changes spaces and ByteLevel bytes.
/// Immutable.
class Rewriter {
 public:
  virtual ~Rewriter() = default;
  /// @param begins_text whether the piece begins the text that is encoded
  /// @return nothing if the piece is not changed
  virtual std::optional<NormalizedText> run(std::string_view piece, bool begins_text,
                                            bool with_sources) const = 0;
  virtual bool asks_for_beginning() const { return false; }
};

/// "always", "first" or "never" from a Metaspace section of a pre-tokenizer or decoder; older files
/// have `add_prefix_space` instead of `prepend_scheme`.   @throws DataError
std::string prepend_scheme_of(const Json& section, const std::string& where);

/// The `pre_tokenizer` section of a tokenizer.json. Immutable.
class PreTokenizer {
 public:
  /// @param section the JSON value   @throws DataError for a type that the library does not know
  PreTokenizer(const Json& section, const std::string& where);

  /// The last step is a ByteLevel: words stay bytes instead of visible characters, which gives the
  /// same tokens with a byte-level model.
  bool gives_bytes() const { return gives_bytes_; }
  /// For models of text: restores the visible characters.
  void make_bytes_visible();
  /// Whether it needs the positions of pieces, even if the caller does not.
  bool asks_for_places() const { return asks_for_places_; }

  /// @param text valid UTF-8; its words go to the sink in order, without empty ones
  void run(const Word& text, bool with_sources, WordSink& sink) const;

 private:
  struct Step {
    std::unique_ptr<Rewriter> rewriter;  ///< null: pieces are not changed
    std::unique_ptr<Splitter> splitter;  ///< null: pieces are not split
  };
  void read(const Json& section, const std::string& where);
  void read_byte_level(const Json& section, const std::string& where);
  void read_metaspace(const Json& section, const std::string& where);
  void run_step(size_t index, const Word& piece, bool with_sources, WordSink& sink) const;
  void split_piece(size_t index, const Word& piece, bool with_sources, WordSink& sink) const;

  std::vector<Step> steps_;
  bool gives_bytes_ = false, asks_for_places_ = false;
};

}  // namespace sftrun::tokenizer
