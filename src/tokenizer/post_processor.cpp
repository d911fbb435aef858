#include "post_processor.h"

#include <fmt/format.h>

#include <utility>

#include "json_access.h"
#include "sftrun/core/error.h"

namespace sftrun::tokenizer {
namespace {

TokenId checked_id(const Json& id, const std::string& name, const std::string& where) {
  const bool sound = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                     id.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
  if (!sound)
    throw DataError(fmt::format("an id of the special token `{}` is not a token id", name), where);
  return id.get<TokenId>();
}

std::vector<TokenId> ids_of(const Json& specials, const std::string& name,
                            const std::string& where) {
  std::vector<TokenId> out;
  for (const Json& id : array_at(object_at(specials, name.c_str(), where), "ids", where))
    out.push_back(checked_id(id, name, where));
  return out;
}

/// "cls": ["[CLS]", 101]
TokenId id_of_pair(const Json& section, const char* key, const std::string& where) {
  const Json& pair = array_at(section, key, where);
  if (pair.size() != 2 || !pair[0].is_string())
    throw DataError(fmt::format("`{}` of the post-processor is not a token and its id", key),
                    where);
  return checked_id(pair[1], pair[0].get<std::string>(), where);
}

/// Processors pass on a list of encodings; a template adds encodings to it.
constexpr TokenId kText = -1;  ///< stands for the text
using Encodings = std::vector<std::vector<TokenId>>;

/// The special tokens of BERT and RoBERTa; RoBERTa has one more before all parts but the first.
void put_around(const Json& section, bool is_roberta, Encodings& encodings,
                const std::string& where) {
  const TokenId cls = id_of_pair(section, "cls", where), sep = id_of_pair(section, "sep", where);
  for (size_t i = 0; i < encodings.size(); ++i) {
    std::vector<TokenId>& ids = encodings[i];
    if (i == 0 || is_roberta) ids.insert(ids.begin(), i == 0 ? cls : sep);
    ids.push_back(sep);
  }
}

void put_in_template(const Json& section, Encodings& encodings, const std::string& where) {
  if (encodings.size() > 2) {
    throw DataError(
        "a TemplateProcessing post-processor after one that returns more than two parts is not "
        "supported",
        where);
  }
  Encodings out;
  for (const Json& piece : array_at(section, encodings.size() == 2 ? "pair" : "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      const bool is_second = string_at(piece.at("Sequence"), "id", where) == "B";
      if (is_second && encodings.size() < 2)
        throw DataError("the post-processor's template for a single text uses a second text",
                        where);
      out.push_back(encodings[is_second ? 1 : 0]);
      continue;
    }
    const std::string name = string_at(object_at(piece, "SpecialToken", where), "id", where);
    out.push_back(ids_of(object_at(section, "special_tokens", where), name, where));
  }
  encodings = std::move(out);
}

void process(const Json& section, Encodings& encodings, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "processors", where))
      process(inner, encodings, where);
  } else if (type == "TemplateProcessing") {
    put_in_template(section, encodings, where);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    put_around(section, type == "RobertaProcessing", encodings, where);
  } else if (type != "ByteLevel") {  // which only moves offsets
    throw DataError(fmt::format("unknown post-processor `{}`", type), where);
  }
}

}  // namespace

PostProcessor::PostProcessor(const Json& section, const std::string& where) {
  if (section.is_null()) return;
  Encodings encodings = {{kText}};
  process(section, encodings, where);
  bool seen_text = false;
  for (const std::vector<TokenId>& ids : encodings) {
    for (const TokenId id : ids) {
      if (id != kText) {
        (seen_text ? after : before).push_back(id);
      } else if (std::exchange(seen_text, true)) {
        throw DataError("the post-processor's template for a single text uses it twice", where);
      }
    }
  }
  if (!seen_text)
    throw DataError("the post-processor's template for a single text does not use the text", where);
}

}  // namespace sftrun::tokenizer
