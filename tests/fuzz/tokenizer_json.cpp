#include "fuzz.h"
#include "tokenizer_text.h"

/// A tokenizer.json that loads must encode and decode anything.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    fuzz::use_tokenizer(tokenizer::read_tokenizer_json(fuzz::text_of(data, size), "tokenizer.json"),
                        "tokenizer.json");
  });
  return 0;
}
