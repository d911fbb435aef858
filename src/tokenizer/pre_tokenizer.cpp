#include "pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "byte_level.h"
#include "json_access.h"
#include "sftrun/core/error.h"
#include "text_edit.h"

namespace sftrun::tokenizer {
namespace {

SplitBehavior behavior_of(const Json& section, const std::string& where) {
  const std::string name = string_at(section, "behavior", where);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw DataError(fmt::format("unknown behavior `{}` of a pre-tokenizer", name), where);
}

std::unique_ptr<Splitter> make_split(const Json& section, const std::string& where) {
  const SplitBehavior behavior = behavior_of(section, where);
  const bool invert = bool_at(section, "invert", false, where);
  const Json& pattern = object_at(section, "pattern", where);
  if (pattern.contains("Regex")) {
    return make_pattern_splitter(string_at(pattern, "Regex", where), behavior, invert, where);
  }
  if (pattern.contains("String")) {
    return make_literal_splitter(string_at(pattern, "String", where), behavior, invert);
  }
  throw DataError("the pre-tokenizer Split has neither a Regex nor a String as its pattern", where);
}

std::unique_ptr<Splitter> make_fixed_length(const Json& section, const std::string& where) {
  constexpr int64_t kDefaultLength = 5;
  const int64_t length =
      section.contains("length") ? int_at(section, "length", where) : kDefaultLength;
  if (length < 1)
    throw DataError("`length` of the pre-tokenizer FixedLength is not positive", where);
  return make_fixed_length_splitter(static_cast<size_t>(length));
}

/// Splitters of the types that have no options but their behavior; null for others.
std::unique_ptr<Splitter> make_named_splitter(const std::string& type, const Json& section,
                                              const std::string& where) {
  if (type == "Split") return make_split(section, where);
  if (type == "FixedLength") return make_fixed_length(section, where);
  if (type == "Whitespace") return make_words_splitter();
  if (type == "WhitespaceSplit") return make_space_splitter();
  if (type == "UnicodeScripts") return make_script_splitter();
  if (type == "Digits")
    return make_digits_splitter(bool_at(section, "individual_digits", false, where));
  if (type == "Punctuation") {
    const bool is_default = !section.contains("behavior");
    return make_punctuation_splitter(is_default ? SplitBehavior::kIsolated
                                                : behavior_of(section, where));
  }
  if (type == "CharDelimiterSplit") {
    return make_literal_splitter(string_at(section, "delimiter", where), SplitBehavior::kRemoved,
                                 false);
  }
  return nullptr;
}

/// Whether the piece is at the beginning of the encoded text: nothing is before it, or only
/// inserted text.
bool begins_text(const Word& piece) {
  uint32_t at = piece.begin;
  for (const Place* place = piece.place; place; place = place->outer) {
    if (place->sources) {
      const std::vector<ByteSpan>& sources = *place->sources;
      if (at > 0 && sources[at - 1].end > 0) return false;
      if (at < sources.size()) at = sources[at].begin;
    }
    at += place->offset;
  }
  return at == 0;
}

class SpaceInFront final : public Rewriter {
 public:
  std::optional<NormalizedText> run(std::string_view piece, bool,
                                    bool with_sources) const override {
    if (piece.starts_with(' ')) return std::nullopt;
    TextEdit edit(piece, with_sources);
    edit.write(" ", 0, 0);
    edit.keep(0, piece.size());
    return edit.take();
  }
};

class ByteLevelRewriter final : public Rewriter {
 public:
  std::optional<NormalizedText> run(std::string_view piece, bool,
                                    bool with_sources) const override {
    return bytes_to_visible(piece, with_sources);
  }
};

/// SentencePiece's spaces: replaces each by a visible character and adds one before the text.
class MetaspaceRewriter final : public Rewriter {
 public:
  MetaspaceRewriter(std::string replacement, const std::string& scheme)
      : replacement_(std::move(replacement)),
        always_(scheme == "always"),
        first_(scheme == "first") {}
  bool asks_for_beginning() const override { return first_; }
  std::optional<NormalizedText> run(std::string_view piece, bool begins_text,
                                    bool with_sources) const override {
    const bool begins = piece.starts_with(' ') || piece.starts_with(replacement_);
    const bool prepends = !begins && (always_ || (first_ && begins_text));
    size_t at = piece.find(' ');
    if (!prepends && at == std::string_view::npos) return std::nullopt;
    TextEdit edit(piece, with_sources);
    if (prepends) edit.write(replacement_, 0, 0);
    size_t from = 0;
    for (; at != std::string_view::npos; at = piece.find(' ', from)) {
      edit.keep(from, at);
      from = at + 1;
      edit.write(replacement_, at, from);
    }
    edit.keep(from, piece.size());
    return edit.take();
  }

 private:
  std::string replacement_;
  bool always_, first_;
};

}  // namespace

std::string prepend_scheme_of(const Json& section, const std::string& where) {
  const bool says_scheme =
      section.contains("prepend_scheme") && !section.at("prepend_scheme").is_null();
  std::string scheme = says_scheme ? string_at(section, "prepend_scheme", where)
                       : bool_at(section, "add_prefix_space", true, where) ? "always"
                                                                           : "never";
  if (scheme != "always" && scheme != "first" && scheme != "never")
    throw DataError(fmt::format("unknown prepend_scheme `{}` of Metaspace", scheme), where);
  return scheme;
}

PreTokenizer::PreTokenizer(const Json& section, const std::string& where) {
  if (!section.is_null()) read(section, where);
  asks_for_places_ = std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.rewriter && step.rewriter->asks_for_beginning();
  });
}

void PreTokenizer::make_bytes_visible() {
  if (gives_bytes_) steps_.push_back({std::make_unique<ByteLevelRewriter>(), nullptr});
  gives_bytes_ = false;
}

void PreTokenizer::read(const Json& section, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "pretokenizers", where)) read(inner, where);
    return;
  }
  make_bytes_visible();  // of a ByteLevel before this step
  if (type == "ByteLevel") return read_byte_level(section, where);
  if (type == "Metaspace") return read_metaspace(section, where);
  if (type == "BertPreTokenizer") {
    steps_.push_back({nullptr, make_space_splitter()});
    steps_.push_back({nullptr, make_punctuation_splitter(SplitBehavior::kIsolated)});
    return;
  }
  auto splitter = make_named_splitter(type, section, where);
  if (!splitter) throw DataError(fmt::format("unknown pre-tokenizer `{}`", type), where);
  steps_.push_back({nullptr, std::move(splitter)});
}

void PreTokenizer::read_byte_level(const Json& section, const std::string& where) {
  Step step;
  if (bool_at(section, "add_prefix_space", true, where))
    step.rewriter = std::make_unique<SpaceInFront>();
  if (bool_at(section, "use_regex", true, where)) step.splitter = make_known_scanner(kGpt2Pattern);
  if (step.rewriter || step.splitter) steps_.push_back(std::move(step));
  gives_bytes_ = true;
}

void PreTokenizer::read_metaspace(const Json& section, const std::string& where) {
  const std::string replacement = string_at(section, "replacement", where);
  if (replacement.empty()) throw DataError("`replacement` of Metaspace is empty", where);
  Step step{std::make_unique<MetaspaceRewriter>(replacement, prepend_scheme_of(section, where)),
            nullptr};
  if (bool_at(section, "split", true, where))
    step.splitter = make_literal_splitter(replacement, SplitBehavior::kMergedWithNext, false);
  steps_.push_back(std::move(step));
}

void PreTokenizer::run(const Word& text, bool with_sources, WordSink& sink) const {
  if (!text.bytes.empty()) run_step(0, text, with_sources, sink);
}

void PreTokenizer::run_step(size_t index, const Word& piece, bool with_sources,
                            WordSink& sink) const {
  if (index == steps_.size()) return sink.take(piece);
  const Step& step = steps_[index];
  if (!step.rewriter) return split_piece(index, piece, with_sources, sink);
  const bool is_first = step.rewriter->asks_for_beginning() && begins_text(piece);
  const auto rewritten = step.rewriter->run(piece.bytes, is_first, with_sources);
  if (!rewritten) return split_piece(index, piece, with_sources, sink);
  const Place place{piece.place, piece.begin, with_sources ? &rewritten->sources : nullptr};
  split_piece(index, {rewritten->text, 0, &place}, with_sources, sink);
}

void PreTokenizer::split_piece(size_t index, const Word& piece, bool with_sources,
                               WordSink& sink) const {
  const Splitter* splitter = steps_[index].splitter.get();
  if (!splitter) return run_step(index + 1, piece, with_sources, sink);
  std::vector<Part> parts;
  splitter->split(piece.bytes, parts);
  for (const Part& part : parts) {
    run_step(index + 1,
             {piece.bytes.substr(part.begin, part.end - part.begin), piece.begin + part.begin,
              piece.place},
             with_sources, sink);
  }
}

}  // namespace sftrun::tokenizer
