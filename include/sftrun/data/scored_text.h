#pragma once

#include <string>

#include "sftrun/data/sequence.h"
#include "sftrun/spec/arch_spec.h"

/// Texts that a head of scores reads outside of training.
namespace sftrun::data {

/// Reads records of the format that `record` has as training with the head reads them, whether or not
/// they have a class: texts, prompts with completions, and conversations. For a head of one score
/// texts end with an EOS, as pairs have it.
/// @param where "file:line", for errors
/// @throws RecordError, as detect_scored_format
SequenceBuilder scored_text_builder(const Json& record, const std::string& where,
                                    const TextModel& text, const spec::ScoreSpec& head);

}  // namespace sftrun::data
