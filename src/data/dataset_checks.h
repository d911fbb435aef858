#pragma once

#include <vector>

#include "endings.h"
#include "fit.h"
#include "record_file.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/sequence.h"

/// What is looked at between reading a data set and training on it: mistakes that training itself
/// would not notice.
namespace sftrun::data {

/// One sequence of a record, decided.
struct Outcome {
  Fate fate = Fate::kKept;
  int64_t length = 0;  ///< before truncation
  Example example;     ///< when kept
  Ending ending = Ending::kStop;
  int64_t num_empty_thinking = 0, num_control_tokens = 0;
  LeftOut left_out;
};
using Outcomes = std::vector<std::vector<Outcome>>;  ///< of each record, its sequences

/// Warns of what is doubtful. @throws DataError showing the example where training is bound to harm
void check_examples(const RecordFile& file, const Outcomes& outcomes, RecordFormat format,
                    const TextModel& model, const config::DataConfig& data);

/// Says what was read and what was left out.
void log_outcome(const RecordFile& file, const Outcomes& outcomes, const DatasetStats& stats,
                 const LengthRule& rule);

/// The error for a data set of which nothing is left.
[[noreturn]] void refuse_empty(const RecordFile& file, const SequenceBuilder& builder,
                               const LengthRule& rule, const Outcomes& outcomes);

}  // namespace sftrun::data
