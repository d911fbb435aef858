#pragma once

#include <arrow/record_batch.h>
#include <arrow/status.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/data/arrow_table.h"

/// Readers on Apache Arrow. Its statuses and exceptions are converted to DataError.
namespace sftrun::arrow_readers {

using data::Compression;
using data::Json;

[[noreturn]] void fail(const std::string& reason, const std::filesystem::path& file);

/// Sizes are the file's, which may be damaged.
[[noreturn]] void fail_for_memory(const std::filesystem::path& file);

inline void check(const arrow::Status& status, const std::filesystem::path& file) {
  if (status.IsOutOfMemory()) fail_for_memory(file);
  if (!status.ok()) fail(status.message(), file);
}
template <class T>
T value_of(arrow::Result<T> result, const std::filesystem::path& file) {
  check(result.status(), file);
  return std::move(result).ValueUnsafe();
}

/// Row `row` as a record, without columns and struct fields that are null. @throws DataError at
/// `where` for strings that are not UTF-8
Json row_of(const arrow::RecordBatch& batch, int64_t row, const std::string& where);

/// A text of the file's own bytes for a message: one line, of limited length, in UTF-8.
std::string one_line(std::string text);

inline constexpr const char* kQuoteFix =
    "quote fields that hold the delimiter or line ends, and double the quotes inside them";

/// A row that is none of the table's, as one of a CSV file with too many columns.
struct BadRow {
  int64_t number = 0;  ///< from 1, good and bad rows together
  std::string message;
};

/// How a file names its records, and what of it was read.
struct TableSource {
  std::filesystem::path file;
  /// The next batch; null at the end.
  std::function<arrow::Result<std::shared_ptr<arrow::RecordBatch>>()> next;
  std::function<uint64_t()> file_position;
  /// Bad rows that were found meanwhile; each is asked for once. Empty: there are none.
  std::function<std::vector<BadRow>()> take_bad_rows = {};
  bool has_text_cells = false;
};
std::unique_ptr<data::RecordReader> read_batches(TableSource source);

std::unique_ptr<data::ByteStream> decompress(const std::filesystem::path& file,
                                             Compression compression);
std::unique_ptr<data::RecordReader> read_csv(const std::filesystem::path& file,
                                             Compression compression, char delimiter);
std::unique_ptr<data::RecordReader> read_parquet(const std::filesystem::path& file);
std::unique_ptr<data::RecordReader> read_arrow(const std::filesystem::path& file);

}  // namespace sftrun::arrow_readers
