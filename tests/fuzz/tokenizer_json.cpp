#include "fuzz.h"
#include "sftrun/text/tokenizer.h"

/// A tokenizer that loads must encode and decode anything.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const auto tokenizer = text::Tokenizer::from_json(fuzz::text_of(data, size), "tokenizer.json");
    constexpr std::string_view kText =
        "Hello  world's\n\t1234 <|im_start|>\xC3\xA9\xF0\x9F\x98\x80";
    const auto encoding = tokenizer.encode_with_spans(kText, true);
    if (encoding.ids.size() != encoding.spans.size()) __builtin_trap();
    tokenizer.decode(encoding.ids, false);
  });
  return 0;
}
