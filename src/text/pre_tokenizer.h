#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/text/chat_template.h"
#include "splitters.h"

namespace sftrun::text {

/// A word as the model sees it.
struct Word {
  std::string_view bytes;
  uint32_t begin = 0;  ///< where it begins in the text
  bool has_prefix =
      false;  ///< its first byte is a space that add_prefix_space put there; `begin` is behind it
};

class WordSink {
 public:
  virtual ~WordSink() = default;
  virtual void take(const Word& word) = 0;
};

/// Whether a `pre_tokenizer` section holds a ByteLevel: the model's tokens are then made of bytes,
/// else of characters.
bool has_byte_level(const Json& section);

/// The `pre_tokenizer` section of a tokenizer.json: Split, Digits, ByteLevel and Sequences of them,
/// ByteLevel at most once; or Metaspace alone, whose writing of spaces is not done here. What
/// stands after ByteLevel sees its visible characters, as in the library. Immutable.
class PreTokenizer {
 public:
  /// @param section the JSON value   @throws DataError naming a kind that is not supported
  PreTokenizer(const Json& section, const std::string& where);

  /// @param text valid UTF-8; its words go to the sink in order, without empty ones
  void run(std::string_view text, WordSink& sink) const;

 private:
  struct Step {
    std::unique_ptr<Splitter> splitter;  ///< null: a ByteLevel without pattern
    bool is_byte_level = false;
    bool add_prefix_space = false;
  };
  void read(const Json& section, const std::string& where);
  void run_step(size_t index, const Word& piece, WordSink& sink) const;
  void run_visible(const Word& piece, size_t index, WordSink& sink) const;
  void split_piece(const Step& step, size_t next, const Word& piece, WordSink& sink) const;

  std::vector<Step> steps_;
};

}  // namespace sftrun::text
