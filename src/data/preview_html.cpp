#include <fmt/format.h>

#include "preview_runs.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/html.h"
#include "sftrun/data/preview.h"

namespace sftrun::data {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1f24; --quiet: #667080; --line: #d5dae1;
  --given-a: #eef1f5; --given-b: #e0e5ec; --trained-a: #b5ecc4; --trained-b: #93dfa9; --special: #8250df; --warn: #b35900; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e4e8ee; --quiet: #95a0af; --line: #343b45;
  --given-a: #22272e; --given-b: #2d343d; --trained-a: #14532d; --trained-b: #1a6b3a; --special: #c9a2ff; --warn: #ffb366; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; } h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
.quiet { color: var(--quiet); } .warn { color: var(--warn); }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.75 ui-monospace, monospace;
  border: 1px solid var(--line); border-radius: 6px; padding: .75rem; }
.tokens span, .legend span { border-radius: 2px; padding: 1px 0; font-family: ui-monospace, monospace; }
.a { background: var(--given-a); } .b { background: var(--given-b); }
.l.a { background: var(--trained-a); } .l.b { background: var(--trained-b); }
.s { color: var(--special); font-weight: 600; } .x { text-decoration: line-through; opacity: .5; }
figure { margin: .5rem 0; } figure img { max-width: 16rem; max-height: 12rem; }
.tokens span:hover { outline: 2px solid var(--special); }
)";

std::string classes_of(const ShownToken& token, bool odd) {
  std::string classes = odd ? "b" : "a";
  if (token.trained) classes += " l";
  if (token.special) classes += " s";
  if (token.cut) classes += " x";
  return classes;
}

std::string token_html(const ShownToken& token, const std::string& origin, bool odd) {
  std::string text;
  for_each_line(
      token.text, [&](std::string_view part) { text += escape_html(part); },
      [&] { text += "⏎\n"; });
  const char* label = token.cut ? "cut off" : token.trained ? "trained on" : "not trained on";
  return fmt::format("<span class=\"{}\" title=\"id {}&#10;{}&#10;{}\">{}</span>",
                     classes_of(token, odd), token.id, label, escape_html(origin), text);
}

/// What is shown of an image or a video: its file, or some of its frames, which are as far apart as they can be.
std::vector<Media> shown_files(const Sequence& sequence, size_t index) {
  constexpr size_t kMaxFrames = 4;
  const SequenceMedia& media = sequence.media[index];
  if (!media.is_image()) return {};
  if (!media.is_of_video()) return {media.media};
  std::vector<Media> frames = shown_video(sequence, index).files;
  if (frames.size() <= kMaxFrames) return frames;
  std::vector<Media> some;
  for (size_t i = 0; i < kMaxFrames; ++i)
    some.push_back(frames[i * (frames.size() - 1) / (kMaxFrames - 1)]);
  return some;
}

/// The image itself, if it is small enough to be in the page.
std::string picture_html(const Media& media, const std::string& caption) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::string file;
  try {
    file = read_media(media);
  } catch (const DataError&) {  // it was there when the record was read
  }
  if (file.empty() || file.size() > kMaxBytes) return {};
  return fmt::format("<img alt=\"{}\" src=\"data:;base64,{}\">", caption, encode_base64(file));
}

std::string media_html(const Sequence& sequence, size_t index) {
  const std::string caption = escape_html(media_line(sequence, index));
  std::string pictures;
  for (const Media& media : shown_files(sequence, index)) pictures += picture_html(media, caption);
  if (pictures.empty()) return fmt::format("<p class=\"quiet\">{}</p>\n", caption);
  return fmt::format("<figure>{}<figcaption class=\"quiet\">{}</figcaption></figure>\n", pictures,
                     caption);
}

std::string sequence_html(const PreviewedSequence& previewed,
                          const tokenizer::Tokenizer& tokenizer) {
  const char* warn = previewed.left_out.empty() ? "" : " class=\"warn\"";
  std::string out = fmt::format("<h2{}>{}</h2>\n", warn, escape_html(headline(previewed)));
  for (const size_t i : shown_media(previewed.sequence)) out += media_html(previewed.sequence, i);
  out += "<div class=\"tokens\">";
  bool odd = false;
  for (const ShownRun& run : shown_runs(previewed, tokenizer)) {
    for (size_t i = 0, count = 1; i < run.tokens.size(); i += count) {
      count = shown_as_one(run, i);
      ShownToken token = run.tokens[i];
      if (count > 1) token.text += fmt::format(" x {}", count);
      out += token_html(token, run.origin, odd);
      odd = !odd;
    }
  }
  return out + "</div>\n";
}

}  // namespace

std::string preview_html(const std::vector<Preview>& previews, const TextModel& model,
                         const std::string& title) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<p class=\"legend\"><span class=\"a l\">trained </span><span class=\"b l\">on</span> "
      "<span class=\"a\">not trained</span><span class=\"b\"> on</span> <span class=\"a "
      "s\">&lt;special&gt;</span> <span class=\"a x\">cut off</span> &nbsp;⏎ a line feed. Shades "
      "alternate between tokens; point at a token to see its id, its label and where it comes "
      "from.</p>\n",
      escape_html(title), kStyle);
  for (const Preview& preview : previews) {
    const std::string_view of_texts = config::trained_of_texts(preview.head);
    out += fmt::format(
        "<p class=\"quiet\">{}: format {}: {}.{}</p>\n", escape_html(preview.name),
        name_of(preview.format), escape_html(preview.format_reason),
        of_texts.empty() ? "" : fmt::format(" No token has a label; trained on: {}.", of_texts));
    for (const PreviewedSequence& previewed : preview.sequences)
      out += sequence_html(previewed, *model.tokenizer);
  }
  return out + "</body>\n</html>\n";
}

}  // namespace sftrun::data
