#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record.h"

/// Records of objectives on judged answers (KTO): TRL's unpaired preference data, {"prompt",
/// "completion", "label"}; conversations and Alpaca records with a label, whose last turn is judged,
/// as LLaMA-Factory reads them; and pairs, of which each answer is an example of its own, as TRL's
/// unpair_preference_dataset makes them.
namespace sftrun::data {

/// An answer behind its prompt: the messages after Conversation::num_prompt_messages, or
/// PlainText::completion.
struct JudgedShape {
  NamedShape answer;
  bool is_desirable = false;
};

/// The column with the judgement, "label" or "kto_tag"; null: the record has a value for neither.
const char* label_column(const Json& record);

/// The judgement of a record with one answer, where the objective does not say that there is one: numbers
/// count beside a "completion" and as "kto_tag" alone, as they may be the classes of another task.
std::optional<bool> likely_judgement(const Json& record);

/// true, false, 1, 0, or one of these as text, in any case: cells of tables.
/// @throws DataError for a record without a label, or with another value
bool judgement_of(const Json& record, const std::string& where);

/// The answers of a record of any format but text: one, or of a preference record both.
/// @throws DataError as `shapes_of` and `judgement_of`, and for a conversation that does not end with
/// an answer
std::vector<JudgedShape> judged_shapes(const Json& record, RecordFormat format,
                                       const TemplateTraits& chat_template,
                                       const std::string& where);

/// The only answer of a record, behind the prompt, whatever judges it.   @throws DataError as above
std::vector<NamedShape> answer_behind_prompt(const Json& record, RecordFormat format,
                                             const TemplateTraits& chat_template,
                                             const std::string& where);

/// @throws DataError for a record that has no label, or no answer: it says what has
[[noreturn]] void refuse_unjudged(const Json& record, const config::ObjectiveInfo& reader,
                                  const std::string& where);

}  // namespace sftrun::data
