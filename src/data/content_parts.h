#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sftrun/data/text_model.h"
#include "sftrun/templates/chat_template.h"

/// Message content as a list of parts, `[{"type": "text", "text": "…"}]`.
namespace sftrun::data {

using templates::Json;

/// Which parts a list may have.
enum class PartKinds : uint8_t { kText, kTextAndImages };

/// A part may lack its type, and have null or empty values of other keys, as tables give them.
/// @param name "messages[1].content"
/// @throws DataError for a part that is not text alone, or an image alone
void check_parts(const Json& parts, const std::string& name, const std::string& where,
                 PartKinds kinds = PartKinds::kText);

/// The usual roles by the form of content that the template reads.
struct PartSupport {
  /// It writes the texts of all parts. Templates for strings print the list itself, leave it out, or
  /// fail; some read parts of one role only, or the first part alone.
  std::set<std::string> reads;
  /// It leaves strings out, or fails on them: a template of a model with images. If it reads the first
  /// part alone, the role is not among `reads`.
  std::set<std::string> needs;
};
PartSupport part_support(const TextModel& model);

/// Brings checked content to the form that the template reads: an empty list is an empty string, a
/// part has its type and its text and nothing else, the texts are joined with newlines for a role of
/// strings, as vLLM does, and a string becomes a part for a role of parts, as in transformers'
/// processors. Content with images stays a list of parts.
void set_parts(Json& message, const PartSupport& support);

/// The messages with their strings as parts.
Json strings_as_parts(Json messages);

/// The texts of checked content: a string, or those of its parts; none if it is null or missing.
std::vector<const std::string*> texts_of(const Json& message);
/// One of these, to change it.   @pre index < texts_of(message).size()
std::string& text_in(Json& message, size_t index);

}  // namespace sftrun::data
