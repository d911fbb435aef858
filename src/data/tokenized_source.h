#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bad_records.h"
#include "endings.h"
#include "fit.h"
#include "sftrun/data/sequence.h"
#include "source_records.h"

namespace sftrun::data {

/// One sequence of a record, and what training does with it.
struct Outcome {
  Fate fate = Fate::kKept;
  int64_t length = 0;  ///< before truncation
  Example example;     ///< when kept
  Ending ending = Ending::kStop;
  int64_t num_empty_answers = 0, num_empty_thinking = 0, num_control_tokens = 0;
  LeftOut left_out;
  std::vector<std::string> unknown_roles, unread_columns, unread_turn_keys, unread_media;
  std::vector<std::string> absent_fields;  ///< of the record, in its first outcome (field_map.h)
  bool begins_with_answer = false, differs_in_class = false, has_two_systems = false,
       has_null_arguments = false, has_idle_marker = false, is_outside_template = false,
       has_messages_as_text = false;
  int64_t num_media_tokens = 0;  ///< of images, frames and features, also if it is left out
  bool has_images = false;
  std::string text;  ///< its beginning, if no token has a label
};

/// Renders, tokenizes and masks a data set's records, block by block, in order.
class TokenizedSource {
 public:
  /// Outcomes of consecutive records of one file.
  struct Block {
    std::vector<std::vector<Outcome>> records;  ///< the sequences of each record
    std::vector<std::string> places;            ///< place of each record, for messages
    std::vector<std::optional<BadRecord>> bad;  ///< such a record has no outcomes
  };

  TokenizedSource(const config::RunConfig& config, const config::DataSource& source, SplitRole role,
                  const TextModel& model, int num_threads);

  /// `record` of examples counts all records of the data set from 0, including bad ones.
  /// @throws DataError for an unreadable file, and, also with data.bad_records: skip, for a record
  /// that data.too_long: error refuses
  std::optional<Block> next();
  void skip(int64_t num_records);  ///< to be called before next()
  /// Notes the files of images and features of all records.   @param stamps must outlive this object
  void note_media_in(MediaStamps& stamps) { builder_.note_media_in(stamps); }
  void require_one_format() const { records_.require_one_format(); }

  const DetectedFormat& format() const { return records_.format(); }
  bool reads_json_as_text() const { return records_.reads_json_as_text(); }
  const LengthRule& rule() const { return rule_; }
  const std::vector<SourceFile>& files() const { return records_.files(); }
  const std::filesystem::path& image_root() const { return records_.image_root(); }
  double fraction_read() const { return records_.fraction_read(); }
  double estimated_records() const { return records_.estimated_records(); }

 private:
  void add_outcomes(Block& block, const SourceRecords::Block& read, size_t index) const;

  SourceRecords records_;
  SequenceBuilder builder_;
  LengthRule rule_;
  TextModel model_;
  bool skips_bad_records_;
  size_t together_;
  int num_threads_;
  int64_t num_records_ = 0;
};

/// See SourceRecords::reads_json_as_text.
std::string json_as_text_warning(const config::DataSource& source);

SequenceOptions sequence_options(const config::RunConfig& run, bool with_parts);

}  // namespace sftrun::data
