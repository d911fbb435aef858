#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rank.h"
#include "sftrun/data/prompt.h"
#include "text_generator.h"

namespace sftrun::engine {

/// One part of several.
struct Share {
  size_t part = 0, parts = 1;
  /// Whether what is dealt in turn, and has this number, belongs to the part.
  bool has(size_t number) const { return number % parts == part; }
};

/// Records that the ranks answer together: each takes the next one when a row of its batch is free.
/// Of ranks that have a model together their lead does.
struct SharedAnswers {
  std::string name;  ///< the same on every rank, new for each call
  Rank& rank;
  const TextGenerator& generator;
  model::Decoder& decoder;
  layers::CopyRanks* copy = nullptr;  ///< that have the decoder's model together; null: each has it
  size_t batch_size = 1;
  const std::vector<size_t>& records;  ///< to answer, the same on every rank
  /// Above 1: `records` are numbers of answers, record * answers_per_record + number of the answer.
  size_t answers_per_record = 1;
  /// A record belongs to the copy of the model that is its number modulo their number, and this rank has
  /// one of them: each batch is the same whenever the records are answered. nullopt: they are taken.
  std::optional<Share> dealt = std::nullopt;
  size_t num_done = 0;   ///< of `records` that were answered before
  bool logs_end = true;  ///< whether the last report is logged, too
  /// The prompt of a record.
  std::function<data::PromptTokens(size_t)> prompt;
  std::function<void(size_t, Answer&&)> on_answer;
  std::function<std::string(size_t)> place;  ///< "file:line" of a record, for errors
  std::string after_errors = {};             ///< what helps then beside their own fix
  /// The most tokens of a record's answer, where they are not the generator's.
  std::function<int64_t(size_t)> max_new_tokens = {};
};

/// Answers all records; rank 0 reports progress. All ranks call it, and return when every record is
/// answered.
/// The random numbers of an answer depend only on the seed, its record and its number there.
/// @return 0, or the exit code of a stop that any rank was asked for
/// @throws DataError naming the record, for images and features that cannot be read
int answer_records(const SharedAnswers& shared);

/// The answers of all ranks, by record, on every rank.   @param own of this rank
std::map<size_t, Answer> answers_of_all_ranks(parallel::Communicator& comm,
                                              const std::map<size_t, Answer>& own);

}  // namespace sftrun::engine
