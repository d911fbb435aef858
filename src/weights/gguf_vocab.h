#pragma once

#include <optional>
#include <string>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/gguf_writer.h"

namespace sftrun::weights {

/// Reads tokenizer.ggml.*. @throws DataError if the file has no vocabulary
text::GgufVocab read_gguf_vocab(const GgufFile& file);
/// Writes tokenizer.ggml.*.
void write_gguf_vocab(const text::GgufVocab& vocab, GgufMetadata& metadata);
/// The texts of bos, eos, unk and pad.
text::RenderOptions read_gguf_special_texts(const GgufFile& file);
std::optional<std::string> read_gguf_chat_template(const GgufFile& file);

}  // namespace sftrun::weights
