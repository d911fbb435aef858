#include "normalizer.h"

#include <fmt/format.h>

#include "json_access.h"
#include "sftrun/core/error.h"

namespace sftrun::text {
namespace {

/// Appends a piece that stands for bytes [begin, end) of the source.
void append(NormalizedText& out, std::string_view piece, ByteSpan source, bool with_sources) {
  out.text += piece;
  if (with_sources) out.sources.insert(out.sources.end(), piece.size(), source);
}

void append_kept(NormalizedText& out, std::string_view text, size_t begin, size_t end,
                 bool with_sources) {
  out.text += text.substr(begin, end - begin);
  if (!with_sources) return;
  for (auto i = static_cast<uint32_t>(begin); i < end; ++i) out.sources.push_back({i, i + 1});
}

void append_replaced(NormalizedText& out, std::string_view text, const std::string& pattern,
                     const std::string& content, bool with_sources) {
  size_t from = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, from)) {
    append_kept(out, text, from, at, with_sources);
    from = at + pattern.size();
    append(out, content, {static_cast<uint32_t>(at), static_cast<uint32_t>(from)}, with_sources);
  }
  append_kept(out, text, from, text.size(), with_sources);
}

}  // namespace

std::vector<ByteSpan> through(const std::vector<ByteSpan>& outer,
                              const std::vector<ByteSpan>& inner) {
  std::vector<ByteSpan> result;
  result.reserve(inner.size());
  for (const ByteSpan& span : inner) {
    if (span.begin == span.end) {
      const uint32_t at = span.begin < outer.size() ? outer[span.begin].begin
                          : outer.empty()           ? 0
                                                    : outer.back().end;
      result.push_back({at, at});
    } else {
      result.push_back({outer[span.begin].begin, outer[span.end - 1].end});
    }
  }
  return result;
}

Normalizer::Normalizer(const Json& section, const std::string& where) {
  if (!section.is_null()) read(section, where);
}

void Normalizer::read(const Json& section, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "normalizers", where)) read(inner, where);
  } else if (type == "NFC") {
    steps_.push_back({Kind::kNfc, {}, {}});
  } else if (type == "Prepend") {
    steps_.push_back({Kind::kPrepend, {}, string_at(section, "prepend", where)});
  } else if (type == "Replace") {
    const Json& pattern = object_at(section, "pattern", where);
    if (!pattern.contains("String") || pattern.at("String") == "")
      throw DataError("the normalizer Replace is supported with a String as its pattern", where);
    steps_.push_back({Kind::kReplace, string_at(pattern, "String", where),
                      string_at(section, "content", where)});
  } else {
    throw DataError(fmt::format("the normalizer `{}` is not supported", type), where,
                    "supported are NFC, Prepend, Replace and Sequence");
  }
}

bool Normalizer::surely_keeps(std::string_view text) const {
  for (const Step& step : steps_) {
    if (step.kind == Kind::kPrepend) return false;
    if (step.kind == Kind::kNfc && !is_surely_nfc(text)) return false;
    if (step.kind == Kind::kReplace && text.find(step.pattern) != std::string_view::npos)
      return false;
  }
  return true;
}

NormalizedText Normalizer::run(std::string_view text, bool with_sources) const {
  NormalizedText result;
  if (steps_.empty()) append_kept(result, text, 0, text.size(), with_sources);
  bool is_first = true;
  for (const Step& step : steps_) {
    NormalizedText next = run_step(step, is_first ? text : result.text, with_sources);
    if (with_sources && !is_first) next.sources = through(result.sources, next.sources);
    result = std::move(next);
    is_first = false;
  }
  return result;
}

NormalizedText Normalizer::run_step(const Step& step, std::string_view text, bool with_sources) {
  if (step.kind == Kind::kNfc) return to_nfc(text);
  NormalizedText result;
  if (step.kind == Kind::kPrepend) {
    append(result, step.content, {0, 0}, with_sources);
    append_kept(result, text, 0, text.size(), with_sources);
  } else {
    append_replaced(result, text, step.pattern, step.content, with_sources);
  }
  return result;
}

std::string prepend_scheme_of(const Json& section, const std::string& where) {
  if (section.contains("prepend_scheme") && !section.at("prepend_scheme").is_null())
    return string_at(section, "prepend_scheme", where);
  return bool_at(section, "add_prefix_space", true, where) ? "always" : "never";
}

Metaspace::Metaspace(const Json& section, const std::string& where)
    : replacement_(string_at(section, "replacement", where)) {
  const std::string scheme = prepend_scheme_of(section, where);
  if (scheme == "always") {
    prepend_ = Prepend::kAlways;
  } else if (scheme == "first") {
    prepend_ = Prepend::kFirst;
  } else if (scheme == "never") {
    prepend_ = Prepend::kNever;
  } else {
    throw DataError(fmt::format("unknown prepend_scheme `{}` of Metaspace", scheme), where);
  }
}

NormalizedText Metaspace::run(std::string_view piece, bool is_first, bool with_sources) const {
  NormalizedText result;
  const bool begins = piece.starts_with(' ') || piece.starts_with(replacement_);
  const bool prepends = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && is_first);
  if (prepends && !begins) append(result, replacement_, {0, 0}, with_sources);
  append_replaced(result, piece, " ", replacement_, with_sources);
  return result;
}

}  // namespace sftrun::text
