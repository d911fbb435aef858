#include "fuzz.h"
#include "tokenizer_text.h"

/// Vocabularies in lines and in JSON: tiktoken, tekken.json, and vocab.json with merges.txt behind
/// a line of its own.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  const std::string_view input = fuzz::text_of(data, size);
  fuzz::expecting_errors([&] {
    fuzz::use_tokenizer(tokenizer::source_from_tiktoken(input, "t.tiktoken", {}, "t"), "t");
  });
  fuzz::expecting_errors(
      [&] { fuzz::use_tokenizer(tokenizer::source_from_tekken(input, "t"), "t"); });
  fuzz::expecting_errors([&] {
    const size_t end = input.find('\n');
    const std::string_view merges = end == std::string_view::npos ? "" : input.substr(end + 1);
    fuzz::use_tokenizer(tokenizer::source_from_vocab_files(input.substr(0, end), merges, {}, "t"),
                        "t");
  });
  return 0;
}
