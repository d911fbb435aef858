#include "normalizer.h"

#include <algorithm>

#include "json_access.h"
#include "sftrun/core/read_limits.h"
#include "text_edit.h"

namespace sftrun::tokenizer {

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

void require_growth(size_t source_bytes, size_t bytes) {
  const ReadLimits limits;
  if (bytes <= source_bytes * limits.growth + limits.grown_bytes) return;
  throw DataError(fmt::format("the tokenizer's normalizer makes a text of {} bytes or more from {}",
                              bytes, source_bytes),
                  "", "check the `normalizer` of tokenizer.json");
}

Normalizer::Normalizer(const Json& section, const std::string& where) {
  if (!section.is_null()) read(section, where);
}

void Normalizer::read(const Json& section, const std::string& where) {
  if (string_at(section, "type", where) != "Sequence") {
    steps_.push_back(make_normalizer_step(section, where));
    return;
  }
  for (const Json& inner : array_at(section, "normalizers", where)) read(inner, where);
}

bool Normalizer::surely_keeps(std::string_view text) const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [&](const auto& step) { return step->surely_keeps(text); });
}

NormalizedText Normalizer::run(std::string_view text, bool with_sources) const {
  TextEdit unchanged(text, with_sources);
  unchanged.keep(0, text.size());
  NormalizedText result = unchanged.take();
  for (const auto& step : steps_) {
    if (result.text.empty()) break;
    if (step->surely_keeps(result.text)) continue;
    NormalizedText next = step->run(result.text, with_sources);
    if (with_sources) next.sources = through(result.sources, next.sources);
    result = std::move(next);
    require_growth(text.size(), result.text.size());
  }
  return result;
}

}  // namespace sftrun::tokenizer
