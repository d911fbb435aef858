#include "post_processor.h"

#include <fmt/format.h>

#include "json_access.h"
#include "sftrun/core/error.h"

namespace sftrun::text {
namespace {

std::vector<TokenId> ids_of(const Json& specials, const std::string& name,
                            const std::string& where) {
  const Json& ids = array_at(object_at(specials, name.c_str(), where), "ids", where);
  std::vector<TokenId> out;
  for (const Json& id : ids) {
    if (!id.is_number_integer())
      throw DataError(fmt::format("an id of the special token `{}` is no integer", name), where);
    out.push_back(id.get<TokenId>());
  }
  return out;
}

void read_template(const Json& section, PostProcessor& out, const std::string& where) {
  bool seen_text = false;
  for (const Json& piece : array_at(section, "single", where)) {
    if (piece.contains("Sequence")) {
      if (seen_text || string_at(piece.at("Sequence"), "id", where) != "A") {
        throw DataError("the post-processor's template for a single text does not hold it once",
                        where);
      }
      seen_text = true;
      continue;
    }
    const std::string name = string_at(object_at(piece, "SpecialToken", where), "id", where);
    const std::vector<TokenId> ids =
        ids_of(object_at(section, "special_tokens", where), name, where);
    std::vector<TokenId>& side = seen_text ? out.after : out.before;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (!seen_text)
    throw DataError("the post-processor's template for a single text does not hold the text",
                    where);
}

void read_post_processor(const Json& section, PostProcessor& out, bool& has_template,
                         const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "Sequence") {
    for (const Json& inner : array_at(section, "processors", where))
      read_post_processor(inner, out, has_template, where);
  } else if (type == "TemplateProcessing") {
    if (has_template)
      throw DataError("two TemplateProcessing post-processors in a row are not supported", where);
    has_template = true;
    read_template(section, out, where);
  } else if (type != "ByteLevel") {  // which only moves offsets
    throw DataError(fmt::format("the post-processor `{}` is not supported", type), where,
                    "supported are TemplateProcessing, ByteLevel and Sequence");
  }
}

}  // namespace

PostProcessor::PostProcessor(const Json& section, const std::string& where) {
  bool has_template = false;
  if (!section.is_null()) read_post_processor(section, *this, has_template, where);
}

}  // namespace sftrun::text
