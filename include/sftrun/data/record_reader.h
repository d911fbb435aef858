#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "sftrun/core/read_limits.h"
#include "sftrun/data/json_lines.h"

/// Reads the records of a file from front to back in blocks; a file may be larger than memory.
namespace sftrun::data {

/// The bytes of a file, decompressed if necessary.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Up to `size` bytes; 0 at the end. @throws DataError
  virtual size_t read(char* buffer, size_t size) = 0;
  /// Number of bytes read of the (compressed) file, for progress.
  virtual uint64_t file_position() const = 0;
};

/// Consecutive records that are not parsed yet, so that several threads can parse them.
class RecordBlock {
 public:
  virtual ~RecordBlock() = default;
  virtual size_t size() const = 0;
  virtual int64_t number(size_t index) const = 0;  ///< line or row in the file, from 1
  /// Thread-safe. Numbers are what the file says (core/exact_json.h); a column that is null is left
  /// out. @param where location of the record, for errors   @throws DataError
  virtual Json parse(size_t index, const std::string& where) const = 0;
  /// The record as it stands in the file, where that is JSON on one line; else empty.
  virtual std::string_view line(size_t /*index*/) const { return {}; }
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// The next block, never empty; null at the end. @throws DataError
  virtual std::unique_ptr<RecordBlock> next() = 0;
  virtual bool is_table() const = 0;  ///< records are numbered by row, not by line
  virtual bool is_plain_text() const { return false; }   ///< each line becomes {"text": …}
  virtual bool has_text_cells() const { return false; }  ///< CSV: lists and objects are JSON text
  virtual uint64_t file_position() const = 0;
};

/// A file of records, for messages.
struct SourceFile {
  std::string path;
  bool is_table = false;
  std::string where(int64_t number) const;  ///< "file:line", or "file, row N"
  bool operator==(const SourceFile&) const = default;
};

/// What the lines of a file are.
enum class LineForm {
  kJson,
  kEither,  ///< text, if the first line does not begin like JSON
  kText,
};

/// Opens a file; its first bytes and its name decide the format: JSON lines (or one JSON array),
/// CSV, TSV, Parquet, Arrow; for .txt also lines of plain text; text formats also with gzip or
/// Zstandard.
/// @param text_form what the lines of a .txt file are
/// @throws DataError if the file cannot be read or has another format
std::unique_ptr<RecordReader> open_records(const std::filesystem::path& file,
                                           LineForm text_form = LineForm::kEither);

/// Sizes of reads and, approximately, of blocks; they do not affect the records.
struct ReadSizes {
  size_t read_bytes = size_t{1} << 20, block_bytes = size_t{4} << 20;
  ReadLimits limits = {};
};

/// Reads JSON lines, or one JSON array of objects, or lines of text, from a stream of text.
/// @param name for errors
/// @throws DataError for a record or blank space that exceeds the limits: a small compressed file
/// may contain arbitrarily long ones
std::unique_ptr<RecordReader> read_json_records(std::unique_ptr<ByteStream> stream,
                                                const std::string& name,
                                                LineForm form = LineForm::kJson,
                                                const ReadSizes& sizes = {});

}  // namespace sftrun::data
