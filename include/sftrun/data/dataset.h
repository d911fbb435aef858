#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/data/example_store.h"
#include "sftrun/data/record_reader.h"
#include "sftrun/data/sequence.h"
#include "sftrun/data/text_model.h"

/// Records on disk to tokenised examples.
namespace sftrun::data {

struct DatasetStats {
  int64_t num_records = 0;           ///< that were read
  int64_t num_bad = 0;               ///< of them, left out by data.bad_records: skip
  int64_t num_examples = 0;          ///< kept
  int64_t num_dropped_too_long = 0;  ///< sequences longer than max_seq_len left out
  int64_t num_truncated = 0;  ///< sequences cut to max_seq_len, of which the next were left out
  int64_t num_labels_cut_off = 0;  ///< because no label was left in what remained
  int64_t num_without_labels = 0;  ///< sequences left out because no token of them carries a label
  int64_t num_tokens = 0, num_label_tokens = 0, longest = 0;  ///< of the examples kept
  DatasetStats& operator+=(const DatasetStats& other);
};

/// One of the data sets that are mixed.
struct DatasetPart {
  std::string name;  ///< its path, as configured
  RecordFormat format = RecordFormat::kText;
  double weight = 1;  ///< how often an epoch sees each example
  std::vector<SourceFile> files;
  int64_t begin = 0, end = 0;  ///< its examples
  std::string fingerprint;     ///< of the contents of its files and of how they are read
};

/// Immutable: what was read, and how.
class Dataset {
 public:
  Dataset(ExampleStore examples, std::vector<DatasetPart> parts, DatasetStats stats,
          std::string fingerprint)
      : examples_(std::move(examples)),
        parts_(std::move(parts)),
        stats_(stats),
        fingerprint_(std::move(fingerprint)) {}

  const ExampleStore& examples() const { return examples_; }
  const std::vector<DatasetPart>& parts() const { return parts_; }
  const DatasetStats& stats() const { return stats_; }
  const std::string& fingerprint() const {
    return fingerprint_;
  }  ///< of contents, tokenizer and template
  const SourceFile& file_of(int64_t example) const;

 private:
  ExampleStore examples_;
  std::vector<DatasetPart> parts_;
  DatasetStats stats_;
  std::string fingerprint_;
};

/// Reads, renders, tokenises and masks data sets (threads: `num_threads`), keeping record order.
/// Sequences longer than max_seq_len are dropped, truncated or refused as data.too_long says (auto:
/// truncated for plain text, else dropped); sequences without any label are left out. Logs format,
/// counts and what was left out. What was tokenised is kept in data.cache_dir, where another
/// process, or a later run of this build, finds it: several may ask at once, one does the work.
/// @param sources data.train or data.val   @param is_validation which split of a folder is meant
/// Records that are malformed or unusable are left out with data.bad_records: skip, and counted.
/// @throws DataError naming all such records else, the first ten with file:line; for an empty file;
/// when nothing is short enough; when no example carries a label. Errors of several data sets come
/// together, as DataProblems.
Dataset load_dataset(const config::RunConfig& config,
                     const std::vector<config::DataSource>& sources, bool is_validation,
                     const TextModel& model, int num_threads);

/// Splits off a validation set of `val_split` of the records (a fraction below 1, or from 1 up that
/// many), the same for a given seed. Examples made of one record stay together; order is kept.
/// Counts of what was left out stay with the first.
/// @throws DataError if one side would be empty
std::pair<Dataset, Dataset> split_dataset(const Dataset& all, double val_split, uint64_t seed);

/// Files that are both trained and validated on: a folder whose names tell no split, given twice.
std::vector<std::string> files_in_both(const config::DataConfig& data);

/// What the first records of a data set look like, without a model.
struct SourceLook {
  std::string name;    ///< the path
  std::string subset;  ///< of several, for messages: ", subset `en` of 3"
  size_t num_files = 0;
  RecordFormat format = RecordFormat::kText;
  std::string format_reason;
  int64_t num_records = 0;            ///< looked at
  std::vector<std::string> warnings;  ///< of roles that are likely misspelt
};
/// @throws DataError as load_dataset, for what needs no model
SourceLook look_at_source(const config::DataConfig& data, const config::DataSource& source,
                          bool is_validation, int64_t num_records = 100);

/// The first records of a data set, taken as training takes them: rendered, tokenised, masked.
struct DatasetTrial {
  std::string name;  ///< for messages
  size_t num_files = 0;
  RecordFormat format = RecordFormat::kText;
  DatasetStats stats;                 ///< of these records
  std::vector<int64_t> lengths;       ///< tokens of each example that was kept
  bool is_whole = false;              ///< there are no others
  int64_t num_records_estimated = 0;  ///< in the whole data set
  std::vector<std::string> warnings;  ///< what training would warn of
};
/// @throws DataError as load_dataset, also where none of these records can be trained on
DatasetTrial try_dataset(const config::RunConfig& config, const config::DataSource& source,
                         bool is_validation, const TextModel& model, int64_t num_records = 100);

/// How many of the records data.val_split takes. @throws DataError where none are left to train on
int64_t num_split_off(double val_split, int64_t num_records);

/// What becomes of a record in training.
struct PreviewedSequence {
  Sequence sequence;     ///< with parts; whole
  std::string place;     ///< "line 3", "row 3"
  int64_t num_kept = 0;  ///< leading tokens that training sees; fewer than there are when truncated
  std::string left_out;  ///< why it is not trained on; empty when it is
};
struct Preview {
  std::string name;  ///< the data set's path
  RecordFormat format = RecordFormat::kText;
  std::string format_reason;
  std::vector<PreviewedSequence> sequences;
  std::vector<std::string> warnings;  ///< that training gives, of the first thousand records
  std::optional<DataError> refusal;   ///< with which training ends, for these records
};
/// The first `num_records` records of a data set as `load_dataset` would take them, and what
/// training would say of the first thousand. @throws as load_dataset, for the records shown
Preview preview_dataset(const config::RunConfig& config, const config::DataSource& source,
                        const TextModel& model, int64_t num_records);

}  // namespace sftrun::data
