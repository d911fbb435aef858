#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/sequence.h"
#include "sftrun/data/text_model.h"

/// Records on disk to examples in memory.
namespace sftrun::data {

struct DatasetStats {
  int64_t num_records = 0;           ///< lines that hold a record
  int64_t num_examples = 0;          ///< kept
  int64_t num_dropped_too_long = 0;  ///< sequences longer than max_seq_len left out
  int64_t num_truncated = 0;  ///< sequences cut to max_seq_len, of which the next were left out
  int64_t num_labels_cut_off = 0;  ///< because no label was left in what remained
  int64_t num_without_labels = 0;  ///< sequences left out because no token of them carries a label
  int64_t num_tokens = 0, num_label_tokens = 0, longest = 0;  ///< of the examples kept
};

/// Immutable: what was read, and how.
class Dataset {
 public:
  Dataset(std::vector<Example> examples, DatasetStats stats, std::string fingerprint,
          RecordFormat format)
      : examples_(std::move(examples)),
        stats_(stats),
        fingerprint_(std::move(fingerprint)),
        format_(format) {}

  const std::vector<Example>& examples() const { return examples_; }
  const DatasetStats& stats() const { return stats_; }
  const std::string& fingerprint() const {
    return fingerprint_;
  }  ///< of contents, tokenizer and template
  RecordFormat format() const { return format_; }

 private:
  std::vector<Example> examples_;
  DatasetStats stats_;
  std::string fingerprint_;
  RecordFormat format_ = RecordFormat::kText;
};

/// Reads, renders, tokenises and masks a JSONL file (threads: `num_threads`), keeping record order.
/// Sequences longer than max_seq_len are dropped, truncated or refused as data.too_long says (auto:
/// truncated for plain text, else dropped); sequences without any label are left out. Logs format,
/// counts and what was left out.
/// @throws DataError with file:line for malformed or unusable records (the first in the file,
/// whatever the threads do); for an
///   empty file; when nothing is short enough; when no example carries a label.
Dataset load_dataset(const config::RunConfig& config, const std::filesystem::path& path,
                     const TextModel& model, int num_threads);

/// Splits off a validation set of `val_split` of the records (a fraction below 1, or from 1 up that
/// many), the same for a given seed. Examples made of one record stay together; order is kept.
/// Counts of what was left out stay with the first.
/// @throws DataError if one side would be empty
std::pair<Dataset, Dataset> split_dataset(Dataset all, double val_split, uint64_t seed);

/// What becomes of a record in training.
struct PreviewedSequence {
  Sequence sequence;     ///< with parts; whole
  int64_t line = 0;      ///< in the file
  int64_t num_kept = 0;  ///< leading tokens that training sees; fewer than there are when truncated
  std::string left_out;  ///< why it is not trained on; empty when it is
};
struct Preview {
  RecordFormat format = RecordFormat::kText;
  std::string format_reason;
  std::vector<PreviewedSequence> sequences;
};
/// The first `num_records` records of a file as `load_dataset` would take them. @throws as
/// load_dataset, for these records alone
Preview preview_dataset(const config::RunConfig& config, const std::filesystem::path& path,
                        const TextModel& model, int64_t num_records);

}  // namespace sftrun::data
