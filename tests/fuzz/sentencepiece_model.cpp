#include "fuzz.h"
#include "tokenizer_text.h"

/// A .model file that loads must encode and decode anything.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const auto model = tokenizer::read_sentencepiece_model(fuzz::text_of(data, size), "m.model");
    fuzz::use_tokenizer(tokenizer::source_from_sentencepiece(model, {}), "m.model");
  });
  return 0;
}
