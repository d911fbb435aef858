#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "field_map.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/record_reader.h"
#include "sftrun/data/sequence.h"
#include "source_files.h"

namespace sftrun::data {

/// Records of one data set, over its files, in order.
class SourceRecords {
 public:
  /// Consecutive records of one file.
  struct Block {
    std::shared_ptr<const RecordBlock> records;
    size_t count = 0;  ///< number of them that belong to the data set
    int32_t file = 0;
    bool has_text_cells = false;  ///< rows of a CSV file
  };

  /// @throws DataError for files that do not exist or have no records
  SourceRecords(const config::RunConfig& config, const config::DataSource& source, SplitRole role);

  /// The next block; nothing at the end (or at max_samples).
  std::optional<Block> next();
  /// Skips the first `count` records. Call it before next().
  void skip(int64_t count);

  /// Checks the other files (some of them if they are many): in a folder or a pattern they may have
  /// another format. @throws DataError naming such a file, or one that cannot be read
  void require_one_format() const;

  MappedRecord parse(const Block& block, size_t index) const;
  std::string where(const Block& block, size_t index) const;
  /// What relative paths of images, videos and features are below: image_root, or the folder of its file.
  std::filesystem::path folder(const Block& block) const;
  /// Of the data set, without links; empty: it has none.
  const std::filesystem::path& image_root() const { return image_root_; }
  const std::vector<SourceFile>& files() const { return files_; }
  const DetectedFormat& format() const { return format_; }  ///< configured, or of the first record
  /// The lines are texts (data.format), and the first looks like a record of JSON.
  bool reads_json_as_text() const { return reads_json_as_text_; }
  double fraction_read() const;  ///< of the files' bytes
  /// Estimated number of records, from the first block's share of the files.
  double estimated_records() const { return estimated_records_; }

 private:
  std::unique_ptr<RecordReader> open(size_t file) const;
  bool open_next();
  DetectedFormat detect() const;
  DetectedFormat format_of_record(const Json& record, const std::string& place) const;
  bool first_line_is_json() const;
  void require_same_format(size_t file) const;
  std::optional<Block> read();

  config::DataSource source_;
  std::filesystem::path image_root_;
  FieldMap fields_;
  config::Objective objective_;
  bool reads_prompts_;  // that the run answers
  bool takes_text_;     // lines of text are records
  bool reads_json_as_text_ = false;
  std::vector<SourceFile> files_;
  std::vector<uint64_t> sizes_;
  size_t next_file_ = 0;
  uint64_t bytes_before_ = 0;  // of the files already read
  std::unique_ptr<RecordReader> reader_;
  std::optional<Block> first_;   // read to detect the format
  std::optional<int64_t> left_;  // of max_samples
  int64_t to_skip_ = 0;
  double estimated_records_ = 0;
  DetectedFormat format_;
};

}  // namespace sftrun::data
