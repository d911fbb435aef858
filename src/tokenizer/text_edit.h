#pragma once

#include <string_view>
#include <utility>

#include "normal_forms.h"

namespace sftrun::tokenizer {

/// @throws DataError for a normalizer that makes a text much longer
void require_growth(size_t source_bytes, size_t bytes);

/// Writes a changed text from start to end and, on request, the source of each of its bytes.
class TextEdit {
 public:
  TextEdit(std::string_view source, bool with_sources)
      : source_(source), with_sources_(with_sources) {
    out_.text.reserve(source.size());
    if (with_sources) out_.sources.reserve(source.size());
  }
  /// Appends bytes [begin, end) of the source unchanged.
  void keep(size_t begin, size_t end) {
    out_.text += source_.substr(begin, end - begin);
    if (!with_sources_) return;
    for (auto i = static_cast<uint32_t>(begin); i < end; ++i) out_.sources.push_back({i, i + 1});
  }
  /// Appends a piece for bytes [begin, end) of the source.
  /// @throws DataError if the text becomes too long
  void write(std::string_view piece, size_t begin, size_t end) {
    require_growth(source_.size(), out_.text.size() + piece.size());
    out_.text += piece;
    mark(begin, end);
  }
  /// Everything that was appended to `text()` since the last call has the source [begin, end).
  void mark(size_t begin, size_t end) {
    if (with_sources_)
      out_.sources.resize(out_.text.size(),
                          {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
  std::string& text() { return out_.text; }
  NormalizedText take() { return std::move(out_); }

 private:
  std::string_view source_;
  bool with_sources_;
  NormalizedText out_;
};

/// Sources of a text that was made from another text that has sources itself.
std::vector<ByteSpan> through(const std::vector<ByteSpan>& outer,
                              const std::vector<ByteSpan>& inner);

}  // namespace sftrun::tokenizer
