#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/data/classes.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/sequence.h"

/// Records of `classify`: a text, a prompt or a conversation of any format for one answer, with its class ("label") or classes ("labels").
namespace sftrun::data {

/// Whether the record has a value for "label" or "labels".
bool has_class(const Json& record);

/// A record whose only text is its "prompt": that becomes "text" or "messages".
/// @param room receives a record that is made   @return `record` itself, if it needs no change
const Json& with_text_of_prompt(const Json& record, Json& room);

/// @throws DataError for a record without a label or a text: it says what is missing
[[noreturn]] void refuse_unclassed(const Json& record, const config::ObjectiveInfo& reader,
                                   const std::string& where);

/// Numbers of the classes of a record, ascending (`Example::targets`): of one class, or of any number of them.
/// A text is the name of a class, else its number; a list of true and false, or of numbers like 1.0, has one for each class.
/// @throws DataError for other values, names and numbers
std::vector<float> class_numbers(const Json& record, const std::vector<std::string>& classes,
                                 config::ProblemType problem, const std::string& where);

/// What the chosen score of a pair is to exceed the other by ("margin"); 0: the record does not say.
/// @throws DataError for another value than a number
float margin_of(const Json& record, const std::string& where);

}  // namespace sftrun::data
