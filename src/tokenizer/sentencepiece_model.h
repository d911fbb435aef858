#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// A SentencePiece model from a .model file or a GGUF file's metadata.
struct SentencePieceModel {
  /// Numbers as in sentencepiece_model.proto; llama.cpp's token types are the same.
  enum class Type : int32_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;
  bool is_unigram = true;  ///< else BPE
  bool byte_fallback = false;
  std::optional<TokenId> unk, bos, eos;
  std::string charsmap;  ///< precompiled; empty: texts are not normalised
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;
};

/// @param bytes of a .model file, a protobuf ModelProto
/// @throws DataError for damaged files, and for models of the types word and char
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& where);

}  // namespace sftrun::tokenizer
