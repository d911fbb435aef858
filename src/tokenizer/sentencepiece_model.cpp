#include "sentencepiece_model.h"

#include <fmt/format.h>

#include <cmath>

#include "protobuf.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

/// Field numbers are those of sentencepiece_model.proto.
namespace sftrun::tokenizer {
namespace {

using Piece = SentencePieceModel::Piece;

SentencePieceModel::Type checked_type(int64_t type, const std::string& where) {
  constexpr int64_t kUnused = 5;
  if (type < 1 || type > 6)
    throw DataError(fmt::format("a piece has the unknown type {}", type), where);
  return type == kUnused ? SentencePieceModel::Type::kNormal
                         : static_cast<SentencePieceModel::Type>(type);
}

Piece read_piece(std::string_view message, const std::string& where) {
  Piece piece;
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 1) piece.text = field->as_bytes(where);
    if (field->number == 2) piece.score = field->as_float(where);
    if (field->number == 3) piece.type = checked_type(field->as_int(where), where);
  }
  if (find_invalid_utf8(piece.text) != std::string_view::npos)
    throw DataError("a piece of the SentencePiece model is not valid UTF-8", where);
  if (!std::isfinite(piece.score))
    throw DataError(fmt::format("the score of the piece `{}` is NaN or infinite", piece.text),
                    where);
  return piece;
}

void read_model_type(int64_t type, SentencePieceModel& model, const std::string& where) {
  constexpr int64_t kUnigram = 1, kBpe = 2;
  if (type != kUnigram && type != kBpe)
    throw DataError("SentencePiece models of the types word and char are not supported", where,
                    "supported types: unigram and bpe");
  model.is_unigram = type == kUnigram;
}

void read_trainer_spec(std::string_view message, SentencePieceModel& model,
                       const std::string& where) {
  const auto id = [&](const ProtobufReader::Field& field) -> std::optional<TokenId> {
    const int64_t value = field.as_int(where);
    if (value < 0) return std::nullopt;
    if (value > INT32_MAX) throw DataError(fmt::format("invalid id {}", value), where);
    return static_cast<TokenId>(value);
  };
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 3) read_model_type(field->as_int(where), model, where);
    if (field->number == 35) model.byte_fallback = field->as_int(where) != 0;
    if (field->number == 40) model.unk = id(*field);
    if (field->number == 41) model.bos = id(*field);
    if (field->number == 42) model.eos = id(*field);
  }
}

void read_normalizer_spec(std::string_view message, SentencePieceModel& model,
                          const std::string& where) {
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 2) model.charsmap = field->as_bytes(where);
    if (field->number == 3) model.add_dummy_prefix = field->as_int(where) != 0;
    if (field->number == 4) model.remove_extra_whitespaces = field->as_int(where) != 0;
  }
}

void check(const SentencePieceModel& model, const std::string& where) {
  if (model.pieces.empty())
    throw DataError("not a SentencePiece model: it has no pieces", where,
                    "download or copy the file again");
  for (const auto& id : {model.unk, model.bos, model.eos}) {
    if (id && static_cast<size_t>(*id) >= model.pieces.size()) {
      throw DataError(fmt::format("the model refers to the id {}, but has only {}", *id,
                                  counted(model.pieces.size(), "piece")),
                      where);
    }
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& where) {
  SentencePieceModel model;
  model.unk = 0;  // the format's defaults
  model.bos = 1;
  model.eos = 2;
  ProtobufReader reader(bytes, where);
  while (const auto field = reader.next()) {
    if (field->number == 1) model.pieces.push_back(read_piece(field->as_bytes(where), where));
    if (field->number == 2) read_trainer_spec(field->as_bytes(where), model, where);
    if (field->number == 3) read_normalizer_spec(field->as_bytes(where), model, where);
  }
  check(model, where);
  return model;
}

}  // namespace sftrun::tokenizer
