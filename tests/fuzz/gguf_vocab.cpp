#include "gguf_vocab.h"

#include "fuzz.h"
#include "tokenizer_text.h"

/// The vocabulary of a GGUF file, as a tokenizer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const weights::GgufFile file(fuzz::bytes_of(data, size), "m.gguf");
    const tokenizer::GgufVocab vocab = weights::read_gguf_vocab(file);
    weights::read_gguf_special_texts(file);
    weights::read_gguf_chat_template(file);
    fuzz::use_tokenizer(tokenizer::read_gguf_vocab(vocab, "m.gguf"), "m.gguf");
  });
  return 0;
}
