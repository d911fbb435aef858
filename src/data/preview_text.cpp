#include <fmt/format.h>

#include "preview_runs.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/data/preview.h"

namespace sftrun::data {
namespace {

/// Formatting, with and without colours. Adjacent tokens alternate between two shades.
struct Look {
  bool colour = false;

  std::string trained_mark(bool trained) const { return trained ? ">> " : "   "; }
  std::string bold(std::string_view text) const {
    return colour ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
  }
  std::string dim(std::string_view text) const {
    return colour ? fmt::format("\x1b[2m{}\x1b[0m", text) : std::string(text);
  }
  std::string token(const ShownToken& token, std::string_view text, bool odd) const {
    if (!colour) return token.special ? fmt::format("⟨{}⟩", text) : std::string(text);
    // 256-colour backgrounds: two greens for tokens that are trained on, two greys for others;
    // readable on light and dark terminals.
    const int background = token.trained ? (odd ? 28 : 34) : (odd ? 238 : 242);
    const char* weight = token.special ? "1;4;" : "";
    const char* faint = token.cut ? "9;" : "";
    return fmt::format("\x1b[{}{}38;5;15;48;5;{}m{}\x1b[0m", weight, faint, background, text);
  }
  std::string separator() const { return colour ? "" : "│"; }
};

constexpr size_t kOriginWidth = 34;

std::string legend(const Look& look, config::HeadKind head) {
  const ShownToken trained{.trained = true}, given{}, special{.special = true};
  if (const std::string_view of_texts = config::trained_of_texts(head); !of_texts.empty())
    return fmt::format(
        "no token has a label; trained on: {}{}\n", of_texts,
        look.colour ? "" : "; │ separates tokens; ⟨…⟩ a special token; ⏎ a line feed");
  if (!look.colour) {
    return ">> tokens that are trained on (carry labels); │ separates tokens; ⟨…⟩ a special "
           "token; ⏎ a line feed\n";
  }
  return fmt::format("{}{} trained on   {}{} not trained on   {} special token   ⏎ line feed\n",
                     look.token(trained, "to", false), look.token(trained, "kens", true),
                     look.token(given, "to", false), look.token(given, "kens", true),
                     look.token(special, "<s>", false));
}

/// The run's tokens; text after a line feed continues below the first token.
std::string tokens_of(const ShownRun& run, const Look& look) {
  std::string out;
  const std::string indent(3 + kOriginWidth + 1, ' ');
  bool odd = false, line_begins = true;
  for (size_t i = 0, count = 1; i < run.tokens.size(); i += count) {
    count = shown_as_one(run, i);
    ShownToken token = run.tokens[i];
    if (count > 1) token.text += fmt::format(" x {}", count);
    if (!line_begins) out += look.separator();
    for_each_line(
        token.text,
        [&](std::string_view text) {
          if (line_begins && !out.empty()) out += '\n' + indent;
          out += look.token(token, text, odd);
          line_begins = false;
        },
        [&] {
          if (line_begins && !out.empty()) out += '\n' + indent;
          out += look.token(token, "⏎", odd);
          line_begins = true;
        });
    odd = !odd;
  }
  return out;
}

}  // namespace

std::string preview_text(const Preview& preview, const TextModel& model, bool colour) {
  const Look look{colour};
  std::string out = fmt::format("format {}: {}\n", name_of(preview.format), preview.format_reason);
  out += legend(look, preview.head);
  for (const PreviewedSequence& previewed : preview.sequences) {
    out += '\n' + look.bold(headline(previewed)) + '\n';
    for (const size_t i : shown_media(previewed.sequence))
      out += "   " + look.dim(media_line(previewed.sequence, i)) + '\n';
    for (const ShownRun& run : shown_runs(previewed, *model.tokenizer)) {
      const std::string origin =
          fmt::format("{:<{}} ", run.cut ? "(cut) " + run.origin : run.origin, kOriginWidth);
      out += look.trained_mark(run.trained) + look.dim(origin) + tokens_of(run, look) + '\n';
    }
  }
  return out;
}

}  // namespace sftrun::data
