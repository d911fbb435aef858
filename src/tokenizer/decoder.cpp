#include "decoder.h"

#include "json_access.h"

namespace sftrun::tokenizer {
namespace {

/// Whether the steps are ByteLevel followed only by steps that join tokens, which ByteLevel already
/// does.
bool is_byte_level(const Json& section, const std::string& where) {
  if (section.is_null()) return false;
  const std::string type = string_at(section, "type", where);
  if (type != "Sequence") return type == "ByteLevel";
  const Json& steps = array_at(section, "decoders", where);
  bool is_first = true;
  for (const Json& step : steps) {
    if (string_at(step, "type", where) != (is_first ? "ByteLevel" : "Fuse")) return false;
    is_first = false;
  }
  return !is_first;
}

}  // namespace

Decoder::Decoder(const Json& section, const std::string& where)
    : is_plain_(is_byte_level(section, where)) {
  if (!section.is_null()) read(section, where);
}

void Decoder::read(const Json& section, const std::string& where) {
  if (string_at(section, "type", where) != "Sequence") {
    steps_.push_back(make_decoder_step(section, where));
    return;
  }
  for (const Json& inner : array_at(section, "decoders", where)) read(inner, where);
  if (steps_.empty()) throw DataError("the decoder is an empty Sequence", where);
}

std::string Decoder::bytes_of(std::string_view token) const {
  std::string out(token);
  for (const auto& step : steps_) out = step->bytes_of(std::move(out));
  return out;
}

std::string Decoder::join(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) {
    if (!tokens.empty()) step->run(tokens);
  }
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (steps_.empty() && i > 0) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace sftrun::tokenizer
