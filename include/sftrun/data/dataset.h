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

/// Reads records and converts them to tokenized examples.
namespace sftrun::data {

struct DatasetStats {
  int64_t num_records = 0;   ///< records read
  int64_t num_bad = 0;       ///< of these, left out by data.bad_records: skip
  int64_t num_examples = 0;  ///< kept
  int64_t num_dropped_too_long =
      0;                      ///< sequences left out because they are longer than max_seq_len
  int64_t num_truncated = 0;  ///< sequences truncated to max_seq_len, including num_labels_cut_off
  int64_t num_labels_cut_off = 0;  ///< truncated sequences left out because no label remained
  int64_t num_without_labels = 0;  ///< sequences left out because no token has a label
  int64_t num_tokens = 0, num_label_tokens = 0, longest = 0;  ///< of the examples kept
  int64_t num_media_left_out = 0;  ///< sequences with images or features that are too long
  int64_t num_desirable = 0, num_undesirable = 0;  ///< examples kept, of judged answers
  DatasetStats& operator+=(const DatasetStats& other);
};

/// One data set of a mixture.
struct DatasetPart {
  std::string name;  ///< its path, as configured
  RecordFormat format = RecordFormat::kText;
  double weight = 1;  ///< how often an epoch uses each example
  std::vector<SourceFile> files;
  int64_t begin = 0, end = 0;  ///< its examples
  std::string
      fingerprint;  ///< hash of the contents of its files and of the settings for reading them
  std::string
      media_fingerprint;  ///< of the files of images and features that records name; empty: there are none
};

/// Tokenized examples and their origin. Immutable.
class Dataset {
 public:
  Dataset(ExampleStore examples, std::vector<DatasetPart> parts, DatasetStats stats,
          std::string fingerprint)
      : examples_(std::move(examples)),
        parts_(std::move(parts)),
        stats_(stats),
        fingerprint_(std::move(fingerprint)) {}

  const ExampleStore& examples() const { return examples_; }
  /// As of ExampleStore.
  void set_advantages(std::vector<double> advantages) {
    examples_.set_advantages(std::move(advantages));
  }
  void set_reference_logps(std::vector<double> logps) {
    examples_.set_reference_logps(std::move(logps));
  }
  void set_teacher(std::shared_ptr<const TeacherScores> teacher) {
    examples_.set_teacher(std::move(teacher));
  }
  const std::vector<DatasetPart>& parts() const { return parts_; }
  const DatasetStats& stats() const { return stats_; }
  /// Of the files and the settings for reading them, not of tokenizer and template.
  const std::string& fingerprint() const { return fingerprint_; }
  const SourceFile& file_of(int64_t example) const;
  std::string place_of(int64_t example) const;  ///< "file:line" of its record

 private:
  ExampleStore examples_;
  std::vector<DatasetPart> parts_;
  DatasetStats stats_;
  std::string fingerprint_;
};

/// Reads, renders, tokenizes and masks data sets with `num_threads` threads, in the order of
/// records. Sequences longer than max_seq_len are dropped, truncated or refused as data.too_long
/// says (auto: truncated for plain text, else dropped); sequences without any label are left out.
/// Logs format, counts and what was left out. The result is cached in data.cache_dir for other
/// processes and later runs of this build. If several processes call it, one of them does the work.
/// @param sources data.train or data.val   @param is_validation selects the split of a folder
/// Records that are malformed or unusable are left out with data.bad_records: skip, and counted.
/// @throws DataError with the number of such records, and the first ten with file:line; for an
/// empty file; if all examples are too long; if no example has a label. Errors of several data sets
/// are thrown together, as DataProblems.
Dataset load_dataset(const config::RunConfig& config,
                     const std::vector<config::DataSource>& sources, bool is_validation,
                     const TextModel& model, int num_threads);

/// How many consecutive examples of the data belong together: the two sequences of a preference
/// record, chosen then rejected, else 1.
int64_t documents_together(const config::RunConfig& config);

/// Splits off a validation set of `val_split` of the records (a fraction below 1, or a number from
/// 1), which depends only on the seed. Examples of one record stay together, and the order is kept.
/// Counts of left-out records stay in the first.   @throws DataError if one side would be empty
std::pair<Dataset, Dataset> split_dataset(const Dataset& all, double val_split, uint64_t seed);

/// Which examples it puts into the validation set.
/// @param records the number of each example's record, from 0 without gaps, in order   @throws alike
std::vector<bool> held_out(const std::vector<int64_t>& records, double val_split, uint64_t seed);

/// Files that are used for both training and validation.
std::vector<std::string> files_in_both(const config::DataConfig& data);

/// A look at the first records of a data set, without a model.
struct SourceLook {
  std::string name;    ///< the path
  std::string subset;  ///< for messages, if there are several: ", subset `en` of 3"
  size_t num_files = 0;
  RecordFormat format = RecordFormat::kText;
  std::string format_reason;
  int64_t num_records = 0;            ///< records read
  std::vector<std::string> warnings;  ///< about roles that are probably misspelt
};
/// @throws DataError as load_dataset, for checks that need no model
SourceLook look_at_source(const config::RunConfig& config, const config::DataSource& source,
                          bool is_validation, int64_t num_records = 100);

/// Whether the model has a chat template that the training data do not use: strings of prompt and
/// completion, and texts. `generate` then needs --no-chat. The first good record of each data set
/// decides.   @throws DataError as load_dataset, for files that cannot be read
bool leaves_template_unused(const config::RunConfig& config, const TextModel& model);

/// Whether one of the first records of a data set has images. Bad records have none.
/// @throws DataError as load_dataset, for files that cannot be read
bool begins_with_images(const config::RunConfig& config,
                        const std::vector<config::DataSource>& sources, bool is_validation,
                        int64_t num_records = 1000);

/// The first records of a data set, rendered, tokenized and masked as in training.
struct DatasetTrial {
  std::string name;  ///< for messages
  size_t num_files = 0;
  RecordFormat format = RecordFormat::kText;
  DatasetStats stats;            ///< of these records
  std::vector<int64_t> lengths;  ///< tokens of each kept example
  std::vector<int64_t> records;  ///< the number of its record among those with an example
  std::vector<std::vector<std::pair<int64_t, int64_t>>>
      images;                         ///< width and height of the images of each kept example
  bool is_whole = false;              ///< the data set has no other records
  int64_t num_records_estimated = 0;  ///< in the whole data set
  std::vector<std::string> warnings;  ///< warnings that training would log
};
/// @throws DataError as load_dataset, and if none of these records can be trained on
DatasetTrial try_dataset(const config::RunConfig& config, const config::DataSource& source,
                         bool is_validation, const TextModel& model, int64_t num_records = 100);

/// Number of records for data.val_split. @throws DataError if none are left to train on
int64_t num_split_off(double val_split, int64_t num_records);

/// A record and how training uses it.
struct PreviewedSequence {
  Sequence sequence;     ///< with parts; not truncated
  std::string place;     ///< "line 3", "row 3"; of preference records "line 3, chosen"
  int64_t num_kept = 0;  ///< leading tokens used in training; fewer than all if truncated
  std::string left_out;  ///< why it is not trained on; empty if it is
  std::vector<std::string> classes = {};  ///< of a text with classes
  /// Of a sampled answer: 1 for the group of the first one that is shown, and so on. 0: it has none
  int64_t group = 0;
  config::HeadKind head = config::HeadKind::kLanguage;  ///< what is trained on: tokens, scores, …
};
struct Preview {
  std::string name;  ///< the data set's path
  RecordFormat format = RecordFormat::kText;
  std::string format_reason;
  config::HeadKind head = config::HeadKind::kLanguage;
  std::vector<PreviewedSequence> sequences;
  std::vector<std::string> warnings;  ///< warnings of training about the first thousand records
  std::optional<DataError> refusal;   ///< error with which training would stop, for these records
};
/// The first `num_records` records of a data set as `load_dataset` would read them, and the
/// warnings of training about the first thousand. @throws as load_dataset, for the records shown
Preview preview_dataset(const config::RunConfig& config, const config::DataSource& source,
                        bool is_validation, const TextModel& model, int64_t num_records);
/// Those warnings alone.   @throws as load_dataset, for the first thousand records
std::vector<std::string> warnings_of_dataset(const config::RunConfig& config,
                                             const config::DataSource& source, bool is_validation,
                                             const TextModel& model);

}  // namespace sftrun::data
