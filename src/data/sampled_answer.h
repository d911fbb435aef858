#pragma once

#include <string>

#include "sftrun/data/sequence.h"

/// Answers that a model sampled, and that have a reward.
namespace sftrun::data {

/// Whether a record has the tokens of an answer and of its prompt.
bool has_sampled_ids(const Json& record);
/// Whether a record says how good its answer is: "reward" or "advantage".
bool has_reward(const Json& record);

/// The sequence of "prompt_ids" and "completion_ids". All tokens of the completion have a label, or
/// those for which "completion_mask" is 1 (others are what tools answered). It has the record's reward,
/// group, log-probabilities and the end of the answer.
/// Log-probabilities are natural logarithms, one for each token of "completion_ids": "logprobs" of the
/// model as it sampled; where "sampling_logprobs" are there, too, those are the engine's own.
/// @throws DataError for a record without them, for ids that the model does not have, lists of other
/// lengths, and values of the wrong type
Sequence sequence_of_ids(const Json& record, const TextModel& model, const SequenceOptions& options,
                         const std::string& where);

/// Takes the same from the record of a text.
/// @throws DataError for values of the wrong type, and for a record that has ids, too
void set_sample(Sequence& sequence, const Json& record, const std::string& where);

}  // namespace sftrun::data
