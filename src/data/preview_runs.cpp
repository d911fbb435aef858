#include "preview_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/config/trained_rows.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun::data {
namespace {

/// Writes control characters except line feed and tab, and incomplete characters, as \xNN.
std::string printable(std::string_view bytes) {
  const bool valid = is_valid_utf8(bytes);
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte == 0x7F || (byte < 0x20 && c != '\n' && c != '\t');
    if (control || (!valid && byte >= 0x80))
      text += fmt::format("\\x{:02X}", byte);
    else
      text += c;
  }
  return text;
}

/// Whether token i is trained on: it has a label, and a token before it to predict it from. A head of
/// scores, or none, predicts no token.
bool is_trained_on(const PreviewedSequence& previewed, size_t i) {
  return previewed.head == config::HeadKind::kLanguage && previewed.left_out.empty() && i > 0 &&
         static_cast<int64_t>(i) < previewed.num_kept && previewed.sequence.mask[i] != 0;
}

/// Whether token i gets features, of an image or from a file.
bool is_feature(const Sequence& sequence, size_t i) {
  return std::any_of(sequence.media.begin(), sequence.media.end(), [&](const SequenceMedia& image) {
    const auto at = static_cast<int64_t>(i);
    return image.begin <= at && at < image.end && sequence.ids[i] == image.feature;
  });
}

std::string origin_at(const Sequence& sequence, const tokenizer::ByteSpan& span) {
  if (span.begin == span.end) return "added by the tokenizer";
  const auto part = std::find_if(sequence.parts.begin(), sequence.parts.end(),
                                 [&](const Sequence::Part& p) { return p.span.end > span.begin; });
  if (part == sequence.parts.end()) return "";
  if (part->message < 0) return part->name;
  return fmt::format("messages[{}] {}", part->message, part->name);
}

}  // namespace

std::vector<ShownRun> shown_runs(const PreviewedSequence& previewed,
                                 const tokenizer::Tokenizer& tokenizer) {
  const Sequence& sequence = previewed.sequence;
  std::vector<ShownRun> runs;
  for (size_t i = 0; i < sequence.ids.size(); ++i) {
    const tokenizer::ByteSpan span = sequence.spans[i];
    const tokenizer::TokenId id = sequence.ids[i];
    ShownToken token{
        .id = id,
        .text =
            span.begin == span.end
                ? tokenizer.id_to_token(id)
                : printable(
                      std::string_view(sequence.text).substr(span.begin, span.end - span.begin)),
        .trained = is_trained_on(previewed, i),
        .special = tokenizer.is_special(id),
        .cut = static_cast<int64_t>(i) >= previewed.num_kept,
        .image = is_feature(sequence, i)};
    std::string origin = origin_at(sequence, span);
    if (token.trained && !sequence.weights.empty() && sequence.weights[i] != 1)
      origin += fmt::format(", weight {:g}", sequence.weights[i]);
    const bool continues = !runs.empty() && runs.back().origin == origin &&
                           runs.back().trained == token.trained && runs.back().cut == token.cut;
    if (!continues) runs.push_back({std::move(origin), token.trained, token.cut, {}});
    runs.back().tokens.push_back(std::move(token));
  }
  return runs;
}

std::optional<float> shown_margin(const PreviewedSequence& previewed) {
  const std::vector<float>& targets = previewed.sequence.targets;
  if (!previewed.classes.empty() || targets.size() != 1 || targets[0] == 0) return std::nullopt;
  return targets[0];
}

namespace {

/// "; class joy", "; reward 0.5, group 2": what the record says of the sequence beside its text.
std::string target_text(const PreviewedSequence& previewed) {
  const Sequence& sequence = previewed.sequence;
  if (!previewed.classes.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : previewed.classes) names.push_back(excerpt(name));
    return fmt::format("; class{} {}", names.size() == 1 ? "" : "es", join(names, ", "));
  }
  if (const auto margin = shown_margin(previewed)) return fmt::format("; margin {:g}", *margin);
  if (sequence.score_kind == ScoreKind::kNone) return "";
  return fmt::format("; {} {:g}, group {}",
                     sequence.score_kind == ScoreKind::kReward ? "reward" : "advantage",
                     sequence.score, previewed.group);
}

}  // namespace

std::string headline(const PreviewedSequence& previewed) {
  const size_t num_tokens = previewed.sequence.ids.size();
  if (num_tokens == 0) return fmt::format("{}: LEFT OUT: {}", previewed.place, previewed.left_out);
  size_t trained = 0;
  for (size_t i = 0; i < num_tokens; ++i) trained += is_trained_on(previewed, i) ? 1 : 0;
  const bool is_prompt = previewed.sequence.is_prompt;
  const std::string_view of_texts = config::trained_of_texts(previewed.head);
  std::string text =
      !of_texts.empty() ? fmt::format("{}: {}", previewed.place, counted(num_tokens, "token"))
      : is_prompt
          ? fmt::format("{}: a prompt of {}, which the run answers itself", previewed.place,
                        counted(num_tokens, "token"))
          : fmt::format("{}: {} tokens, {} trained on ({:.1f}%)", previewed.place, num_tokens,
                        trained,
                        100.0 * static_cast<double>(trained) / static_cast<double>(num_tokens));
  if (previewed.sequence.judgement != Judgement::kNone)
    text += previewed.sequence.judgement == Judgement::kDesirable ? "; desirable" : "; undesirable";
  text += target_text(previewed);
  if (!previewed.left_out.empty()) return text + "; LEFT OUT: " + previewed.left_out;
  if (previewed.num_kept < static_cast<int64_t>(num_tokens)) {
    text += fmt::format("; TRUNCATED to its first {}", previewed.num_kept);
  }
  return text;
}

size_t shown_as_one(const ShownRun& run, size_t first) {
  size_t end = first + 1;
  while (run.tokens[first].image && end < run.tokens.size() && run.tokens[end].image) ++end;
  return end - first;
}

std::vector<size_t> shown_media(const Sequence& sequence) {
  std::vector<size_t> shown;
  for (size_t i = 0; i < sequence.media.size(); ++i)
    if (sequence.media[i].frames.first == 0) shown.push_back(i);
  return shown;
}

ShownVideo shown_video(const Sequence& sequence, size_t index) {
  const SequenceMedia& first = sequence.media[index];
  ShownVideo video{.begin = first.begin};
  for (size_t i = index;
       i < sequence.media.size() && sequence.media[i].frames.video == first.frames.video; ++i) {
    const std::vector<Media> files = files_of(sequence.media[i]);
    video.files.insert(video.files.end(), files.begin(), files.end());
    video.num_tokens += sequence.media[i].num_tokens;
    video.end = sequence.media[i].end;
  }
  return video;
}

std::string media_line(const Sequence& sequence, size_t index) {
  const SequenceMedia& shown = sequence.media[index];
  if (shown.is_of_video()) {
    const ShownVideo video = shown_video(sequence, index);
    std::string files = name_of(video.files.front());
    if (video.files.size() > 1 && video.files.front().bytes == nullptr)
      files += " to " + name_of(video.files.back());
    return fmt::format("video {}: {}, {}, {} x {} pixels, {} tokens", shown.frames.video,
                       counted(video.files.size(), "frame"), files, shown.width, shown.height,
                       video.num_tokens);
  }
  const auto end = sequence.media.begin() + static_cast<std::ptrdiff_t>(index) + 1;
  const auto number = std::count_if(sequence.media.begin(), end, [&](const SequenceMedia& media) {
    return media.is_image() == shown.is_image() && !media.is_of_video();
  });
  if (!shown.is_image())
    return fmt::format("features {}: {}, {}, {}", number, name_of(shown.media),
                       counted(shown.rows, "row"), counted(shown.num_tokens, "token"));
  return fmt::format("image {}: {}, {} x {} pixels, {}", number, name_of(shown.media), shown.width,
                     shown.height, counted(shown.num_tokens, "token"));
}

}  // namespace sftrun::data
