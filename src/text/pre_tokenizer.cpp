#include "pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "byte_level.h"
#include "json_access.h"
#include "sftrun/core/error.h"

namespace sftrun::text {
namespace {

SplitBehavior parse_behavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw DataError(fmt::format("unknown behavior `{}` of the pre-tokenizer Split", name), where);
}

std::unique_ptr<Splitter> make_split(const Json& section, const std::string& where) {
  const SplitBehavior behavior = parse_behavior(string_at(section, "behavior", where), where);
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

/// The part of a piece, with its place in the text.
Word sub_piece(const Word& piece, const Part& part) {
  const auto prefix = static_cast<uint32_t>(piece.has_prefix);
  return {.bytes = piece.bytes.substr(part.begin, part.end - part.begin),
          .begin = piece.begin + (part.begin > prefix ? part.begin - prefix : 0),
          .has_prefix = piece.has_prefix && part.begin == 0};
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& section, const std::string& where) {
  if (!section.is_null()) read(section, where);
  const auto num_byte_levels =
      std::count_if(steps_.begin(), steps_.end(), [](const Step& s) { return s.is_byte_level; });
  if (num_byte_levels > 1) {
    throw DataError(fmt::format("the tokenizer has {} ByteLevel pre-tokenizers: not supported",
                                num_byte_levels),
                    where);
  }
}

bool has_byte_level(const Json& section) {
  if (!section.is_object()) return false;
  const auto type = section.find("type");
  if (type != section.end() && *type == "ByteLevel") return true;
  const auto inner = section.find("pretokenizers");
  return inner != section.end() && inner->is_array() &&
         std::any_of(inner->begin(), inner->end(), has_byte_level);
}

void PreTokenizer::read(const Json& section, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "pretokenizers", where)) read(inner, where);
  } else if (type == "ByteLevel") {
    Step step{.is_byte_level = true,
              .add_prefix_space = bool_at(section, "add_prefix_space", true, where)};
    if (bool_at(section, "use_regex", true, where))
      step.splitter = make_known_scanner(kGpt2Pattern);
    steps_.push_back(std::move(step));
  } else if (type == "Split") {
    steps_.push_back({.splitter = make_split(section, where)});
  } else if (type == "Digits") {
    steps_.push_back(
        {.splitter = make_digits_splitter(bool_at(section, "individual_digits", false, where))});
  } else if (type == "Metaspace" && steps_.empty()) {
    if (bool_at(section, "split", true, where)) {
      steps_.push_back({.splitter = make_literal_splitter(string_at(section, "replacement", where),
                                                          SplitBehavior::kMergedWithNext, false)});
    }
  } else {
    throw DataError(fmt::format("the pre-tokenizer `{}` is not supported{}", type,
                                type == "Metaspace" ? " behind another" : ""),
                    where, "supported are ByteLevel, Split, Digits, Sequence, and Metaspace alone");
  }
}

void PreTokenizer::run(std::string_view text, WordSink& sink) const {
  if (!text.empty()) run_step(0, {.bytes = text}, sink);
}

void PreTokenizer::run_step(size_t index, const Word& piece, WordSink& sink) const {
  if (index == steps_.size()) return sink.take(piece);
  const Step& step = steps_[index];
  if (step.is_byte_level && step.add_prefix_space && !piece.bytes.starts_with(' ')) {
    const std::string prefixed = ' ' + std::string(piece.bytes);
    return split_piece(step, index + 1,
                       {.bytes = prefixed, .begin = piece.begin, .has_prefix = true}, sink);
  }
  split_piece(step, index + 1, piece, sink);
}

void PreTokenizer::split_piece(const Step& step, size_t next, const Word& piece,
                               WordSink& sink) const {
  const auto pass_on = [&](const Word& part) {
    step.is_byte_level&& next < steps_.size() ? run_visible(part, next, sink)
                                              : run_step(next, part, sink);
  };
  if (!step.splitter) return pass_on(piece);
  std::vector<Part> parts;
  step.splitter->split(piece.bytes, parts);
  for (const Part& part : parts) pass_on(sub_piece(piece, part));
}

/// Runs the steps behind ByteLevel on the visible characters and gives the sink the bytes they
/// stand for.
void PreTokenizer::run_visible(const Word& piece, size_t index, WordSink& sink) const {
  class ToBytes final : public WordSink {
   public:
    ToBytes(const Word& piece, WordSink& sink) : piece_(piece), sink_(sink) {}
    void take(const Word& word) override {
      // Words come in order; a removed delimiter leaves a hole before one.
      begin_ += count_chars(word.begin - visible_begin_, word);
      const auto length =
          static_cast<uint32_t>(std::count_if(word.bytes.begin(), word.bytes.end(), starts_char));
      sink_.take(sub_piece(piece_, {begin_, begin_ + length, false}));
      begin_ += length;
      visible_begin_ = word.begin + static_cast<uint32_t>(word.bytes.size());
    }

   private:
    static bool starts_char(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }
    static uint32_t count_chars(uint32_t num_bytes, const Word& word) {
      return static_cast<uint32_t>(
          std::count_if(word.bytes.data() - num_bytes, word.bytes.data(), starts_char));
    }
    const Word& piece_;
    WordSink& sink_;
    uint32_t begin_ = 0;          // in the piece
    uint32_t visible_begin_ = 0;  // in its visible text
  };
  const std::string visible = bytes_to_visible(piece.bytes);
  ToBytes to_bytes(piece, sink);
  run_step(index, {.bytes = visible}, to_bytes);
}

}  // namespace sftrun::text
