#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/data/dataset.h"

namespace sftrun::data {

/// A token for display.
struct ShownToken {
  tokenizer::TokenId id = 0;
  std::string text;      ///< valid UTF-8; bytes of an incomplete character are written as \xE2
  bool trained = false;  ///< trained on
  bool special = false;
  bool cut = false;    ///< after max_seq_len: not used in training
  bool image = false;  ///< gets features of an image
};
/// Adjacent tokens of one origin that are all trained on, with the same weight, or all not.
struct ShownRun {
  /// "messages[1] user content", "template", "added by the tokenizer", with the weight if it is not 1
  std::string origin;
  bool trained = false, cut = false;
  std::vector<ShownToken> tokens;
};
std::vector<ShownRun> shown_runs(const PreviewedSequence& previewed,
                                 const tokenizer::Tokenizer& tokenizer);

/// What a pair's margin is to be; nullopt: the sequence is of no pair, or has none.
std::optional<float> shown_margin(const PreviewedSequence& previewed);
/// "line 3: 120 tokens, 40 trained on (33.3%)", its class, judgement or reward, and why it is left out or truncated.
std::string headline(const PreviewedSequence& previewed);

/// Images, features and videos of a sequence: index of each in `Sequence::media`, of a video of its first frames.
std::vector<size_t> shown_media(const Sequence& sequence);
/// "image 1: photos/a.png, 640 x 480 pixels, 300 tokens"
/// @param index of `shown_media`
std::string media_line(const Sequence& sequence, size_t index);
/// All frames of a video, in order, and where it is in the tokens.
struct ShownVideo {
  std::vector<Media> files;
  int64_t num_tokens = 0, begin = 0, end = 0;
};
/// @param index of `shown_media`, of a video
ShownVideo shown_video(const Sequence& sequence, size_t index);

/// How many tokens from `first` on are the same token of an image, which are shown as one; 1: it is none.
size_t shown_as_one(const ShownRun& run, size_t first);

/// Calls `on_text(text)` for what lies between line feeds, and `on_line_feed()` at each.
template <typename OnText, typename OnLineFeed>
void for_each_line(std::string_view text, const OnText& on_text, const OnLineFeed& on_line_feed) {
  for (;;) {
    const size_t end = text.find('\n');
    if (end != 0) on_text(text.substr(0, end));
    if (end == std::string_view::npos) return;
    on_line_feed();
    text.remove_prefix(end + 1);
    if (text.empty()) return;
  }
}

}  // namespace sftrun::data
