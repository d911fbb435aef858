#pragma once

#include <string>
#include <vector>

#include "dataset_remarks.h"
#include "dataset_tallies.h"

/// Checks of a data set before training, for mistakes that training itself would not notice.
namespace sftrun::data {

/// Counts while a data set is read, and checks the counts at the end.
class DatasetChecks {
 public:
  DatasetChecks(const TextModel& model, const config::RunConfig& run, RecordFormat format,
                const LengthRule& rule)
      : context_(model, run, format, rule) {}

  void add(const std::vector<Outcome>& record, const std::string& place) {
    tallies_.add(record, place, context_);
  }
  /// @param gives_up refuse if the first thousand records are all bad   @throws DataError
  void add(const TokenizedSource::Block& block, bool gives_up = true);
  const BadRecords& bad_records() const { return tallies_.bad; }

  /// @param scope see BadRecords   @throws DataError for bad records, unless they are left out
  void require_usable_records(const std::string& scope = {}) const;
  /// Remarks about doubtful data. @throws DataError with an example if training would harm the
  /// model, or if nothing is left to train on
  std::vector<Remark> conclude() const;
  const DatasetStats& stats() const { return tallies_.stats; }

 private:
  const CheckContext context_;
  DatasetTallies tallies_;
};

}  // namespace sftrun::data
