#pragma once

#include "tokenizer_files.h"
#include "tokenizer_impl.h"

namespace sftrun::fuzz {

/// A tokenizer that loads must encode and decode anything, and write a file that loads.
inline void use_tokenizer(tokenizer::TokenizerSource source, const std::string& where) {
  const tokenizer::Tokenizer::Impl tokenizer(std::move(source), where);
  constexpr std::string_view kText =
      "Hello  world's\n\t1234 <|im_start|>\xC3\xA9\xCC\x81\xF0\x9F\x98\x80\r\n\xE2\x80\x8D ";
  std::vector<tokenizer::TokenId> ids;
  std::vector<tokenizer::ByteSpan> spans;
  tokenizer.encode(kText, true, ids, &spans);
  if (ids.size() != spans.size()) __builtin_trap();
  for (const tokenizer::ByteSpan& span : spans)
    if (span.begin > span.end || span.end > kText.size()) __builtin_trap();
  tokenizer.decode(ids, false);
  tokenizer::read_tokenizer_json(tokenizer::write_tokenizer_json(tokenizer), where);
}

}  // namespace sftrun::fuzz
