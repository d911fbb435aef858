#include "post_processor.h"

#include <fmt/format.h>

#include "json_access.h"
#include "sftrun/core/error.h"

namespace sftrun::text {
namespace {

TokenId checked_id(const Json& id, const std::string& name, const std::string& where) {
  const bool sound = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                     id.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX);
  if (!sound)
    throw DataError(fmt::format("an id of the special token `{}` is no token's", name), where);
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
    throw DataError(fmt::format("`{}` of the post-processor is not a token and its id", key), where);
  return checked_id(pair[1], pair[0].get<std::string>(), where);
}

}  // namespace

PostProcessor::PostProcessor(const Json& section, const std::string& where) {
  if (!section.is_null()) read(section, where);
}

/// Of several each puts its tokens around what those before it made.
void PostProcessor::read(const Json& section, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "processors", where)) read(inner, where);
  } else if (type == "TemplateProcessing") {
    read_template(section, where);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    before.insert(before.begin(), id_of_pair(section, "cls", where));
    after.push_back(id_of_pair(section, "sep", where));
  } else if (type != "ByteLevel") {  // which only moves offsets
    throw DataError(fmt::format("unknown post-processor `{}`", type), where);
  }
}

void PostProcessor::read_template(const Json& section, const std::string& where) {
  bool seen_text = false;
  std::vector<TokenId> front;
  for (const Json& piece : array_at(section, "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (seen_text || string_at(piece.at("Sequence"), "id", where) != "A") {
        throw DataError("the post-processor's template for a single text does not hold it once",
                        where);
      }
      seen_text = true;
      continue;
    }
    const std::string name = string_at(object_at(piece, "SpecialToken", where), "id", where);
    const auto ids = ids_of(object_at(section, "special_tokens", where), name, where);
    std::vector<TokenId>& side = seen_text ? after : front;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen_text)
    throw DataError("the post-processor's template for a single text does not hold the text",
                    where);
  before.insert(before.begin(), front.begin(), front.end());
}

}  // namespace sftrun::text
