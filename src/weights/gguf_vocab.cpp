#include "gguf_vocab.h"

#include <algorithm>
#include <array>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

std::string text_at(const GgufFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return {};
  if (!found->is_string()) throw DataError(fmt::format("`{}` must be a string", key), file.where());
  return found->get<std::string>();
}

/// An id within the vocabulary; nullopt if the key is missing.
std::optional<tokenizer::TokenId> id_at(const GgufFile& file, const std::string& name,
                                        size_t vocab_size) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return std::nullopt;
  const bool sound = found->is_number_integer() && found->get<int64_t>() >= 0 &&
                     found->get<uint64_t>() < vocab_size;
  if (!sound) {
    throw DataError(fmt::format("`{}` is {}, expected a token id below {}", key,
                                excerpt(found->dump()), vocab_size),
                    file.where());
  }
  return found->get<tokenizer::TokenId>();
}

/// llama.cpp's default if the key is missing: BOS for SentencePiece vocabularies, and for those of
/// Llama 3 and Mistral.
bool adds_bos_by_default(const tokenizer::GgufVocab& vocab) {
  static constexpr std::array<std::string_view, 7> kLlama3 = {
      "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"};
  return vocab.model == "llama" || vocab.model == "gemma4" || vocab.pre == "tekken" ||
         std::find(kLlama3.begin(), kLlama3.end(), vocab.pre) != kLlama3.end();
}

bool flag_at(const GgufFile& file, const std::string& key, bool otherwise) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return otherwise;
  if (!found->is_boolean())
    throw DataError(fmt::format("`{}` must be true or false", key), file.where());
  return found->get<bool>();
}

}  // namespace

tokenizer::GgufVocab read_gguf_vocab(const GgufFile& file) {
  tokenizer::GgufVocab vocab;
  vocab.model = text_at(file, "tokenizer.ggml.model");
  vocab.pre = text_at(file, "tokenizer.ggml.pre");
  vocab.tokens = file.strings("tokenizer.ggml.tokens");
  if (vocab.model.empty() || vocab.tokens.empty()) {
    throw DataError("the file has no vocabulary (tokenizer.ggml.model, tokenizer.ggml.tokens)",
                    file.where());
  }
  vocab.merges = file.strings("tokenizer.ggml.merges");
  vocab.scores = file.floats("tokenizer.ggml.scores");
  for (const int64_t type : file.ints("tokenizer.ggml.token_type")) {
    vocab.token_types.push_back(static_cast<int32_t>(type));
  }
  const size_t size = vocab.tokens.size();
  vocab.bos = id_at(file, "bos", size);
  vocab.eos = id_at(file, "eos", size);
  vocab.unk = id_at(file, "unknown", size);
  vocab.pad = id_at(file, "padding", size);
  vocab.add_bos = flag_at(file, "tokenizer.ggml.add_bos_token", adds_bos_by_default(vocab));
  vocab.add_eos = flag_at(file, "tokenizer.ggml.add_eos_token", vocab.model == "t5");
  vocab.add_space_prefix = flag_at(file, "tokenizer.ggml.add_space_prefix", true);
  vocab.remove_extra_whitespaces =
      flag_at(file, "tokenizer.ggml.remove_extra_whitespaces", vocab.remove_extra_whitespaces);
  for (const int64_t byte : file.ints("tokenizer.ggml.precompiled_charsmap"))
    vocab.precompiled_charsmap += static_cast<char>(byte);
  return vocab;
}

void write_gguf_vocab(const tokenizer::GgufVocab& vocab, GgufMetadata& metadata) {
  metadata.set_string("tokenizer.ggml.model", vocab.model);
  if (!vocab.pre.empty()) metadata.set_string("tokenizer.ggml.pre", vocab.pre);
  metadata.set_strings("tokenizer.ggml.tokens", vocab.tokens);
  if (!vocab.scores.empty()) metadata.set_floats("tokenizer.ggml.scores", vocab.scores);
  metadata.set_ints("tokenizer.ggml.token_type", vocab.token_types);
  if (vocab.model != "llama") metadata.set_strings("tokenizer.ggml.merges", vocab.merges);
  const auto set_id = [&](const char* name, std::optional<tokenizer::TokenId> id) {
    if (id) {
      metadata.set_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*id));
    }
  };
  set_id("bos", vocab.bos);
  set_id("eos", vocab.eos);
  set_id("unknown", vocab.unk);
  set_id("padding", vocab.pad);
  metadata.set_bool("tokenizer.ggml.add_bos_token", vocab.add_bos);
  metadata.set_bool("tokenizer.ggml.add_eos_token", vocab.add_eos);
  // Not for byte-level BPE (gpt2): there the key has a meaning for old tokenizers only.
  if (vocab.model != "gpt2")
    metadata.set_bool("tokenizer.ggml.add_space_prefix", vocab.add_space_prefix);
}

templates::RenderOptions read_gguf_special_texts(const GgufFile& file) {
  const tokenizer::GgufVocab vocab = read_gguf_vocab(file);
  const auto text_of = [&](std::optional<tokenizer::TokenId> id) {
    return id ? vocab.tokens[static_cast<size_t>(*id)] : std::string();
  };
  templates::RenderOptions options;
  options.bos_token = text_of(vocab.bos);
  options.eos_token = text_of(vocab.eos);
  options.unk_token = text_of(vocab.unk);
  options.pad_token = text_of(vocab.pad);
  return options;
}

std::optional<std::string> read_gguf_chat_template(const GgufFile& file) {
  if (!file.metadata().contains("tokenizer.chat_template")) return std::nullopt;
  return text_at(file, "tokenizer.chat_template");
}

}  // namespace sftrun::weights
