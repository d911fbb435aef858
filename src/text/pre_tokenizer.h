#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "normal_forms.h"
#include "place.h"
#include "sftrun/text/chat_template.h"
#include "splitters.h"

namespace sftrun::text {

/// A part of a text, and the position of that text in the encoded text.
struct Word {
  std::string_view bytes;
  uint32_t begin = 0;            ///< in its text
  const Place* place = nullptr;  ///< of its text; null: it is the one that is encoded
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

/// "always", "first" or "never" of a Metaspace section, pre-tokenizer or decoder; files older than
/// `prepend_scheme` say `add_prefix_space`.   @throws DataError
std::string prepend_scheme_of(const Json& section, const std::string& where);

/// The `pre_tokenizer` section of a tokenizer.json. Immutable.
class PreTokenizer {
 public:
  /// @param section the JSON value   @throws DataError for a type that the library does not know
  PreTokenizer(const Json& section, const std::string& where);

  /// The last step is a ByteLevel: its visible characters are left out, words are bytes, which is
  /// the same to a model of bytes.
  bool gives_bytes() const { return gives_bytes_; }
  /// For models of text: restores the visible characters.
  void make_bytes_visible();
  /// Whether it needs the positions of pieces, even if the caller does not.
  bool asks_for_places() const { return asks_for_places_; }

  /// @param text valid UTF-8; its words go to the sink in order, without empty ones
  void run(const Word& text, bool with_sources, WordSink& sink) const;

 private:
  struct Step {
    std::unique_ptr<Rewriter> rewriter;  ///< null: pieces stay as they are
    std::unique_ptr<Splitter> splitter;  ///< null: pieces stay whole
  };
  void read(const Json& section, const std::string& where);
  void read_byte_level(const Json& section, const std::string& where);
  void read_metaspace(const Json& section, const std::string& where);
  void run_step(size_t index, const Word& piece, bool with_sources, WordSink& sink) const;
  void split_piece(size_t index, const Word& piece, bool with_sources, WordSink& sink) const;

  std::vector<Step> steps_;
  bool gives_bytes_ = false, asks_for_places_ = false;
};

}  // namespace sftrun::text
