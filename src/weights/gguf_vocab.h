#pragma once

#include <optional>
#include <string>

#include "sftrun/templates/chat_template.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/gguf_writer.h"

namespace sftrun::weights {

/// Reads tokenizer.ggml.*. @throws DataError if the file has no vocabulary
tokenizer::GgufVocab read_gguf_vocab(const GgufFile& file);
/// Writes tokenizer.ggml.*.
void write_gguf_vocab(const tokenizer::GgufVocab& vocab, GgufMetadata& metadata);
/// The texts of bos, eos, unk and pad.
templates::RenderOptions read_gguf_special_texts(const GgufFile& file);
std::optional<std::string> read_gguf_chat_template(const GgufFile& file);

}  // namespace sftrun::weights
