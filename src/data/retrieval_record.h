#pragma once

#include <string>
#include <vector>

#include "sftrun/data/json_lines.h"
#include "sftrun/data/retrieval.h"
#include "sftrun/data/sequence.h"

/// Records of `embed`: a query ("anchor" or "query"), texts that fit it ("positive" or "pos"), and texts
/// that do not ("negative", "neg", "negative_1", "negative_2", …), each a text or a list of them.
namespace sftrun::data {

struct RetrievalRecord {
  std::string anchor;
  std::vector<std::string> positives, negatives;
};

/// Whether the record has a query and texts that fit it.
bool has_retrieval(const Json& record);

/// @throws RecordError for what is missing, is no text or is empty
RetrievalRecord retrieval_record(const Json& record, const std::string& where);

/// @throws RecordError that says what is missing
[[noreturn]] void refuse_unpaired_query(const Json& record, const config::ObjectiveInfo& reader,
                                        const std::string& where);

/// For each text that fits: the query, that text, and `options.negatives` of those that do not, behind
/// their prompts, with the special tokens that the tokenizer adds, and no others. Every token counts.
/// @throws RecordError for fewer texts that do not fit
std::vector<Sequence> retrieval_sequences(const Json& record, const TextModel& model,
                                          const SequenceOptions& options, const std::string& where);

/// One text, tokenised as `tokenizer(text)` does it.
Sequence whole_text(std::string text, const TextModel& model, bool with_parts);

}  // namespace sftrun::data
