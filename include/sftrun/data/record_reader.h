#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "sftrun/core/read_limits.h"
#include "sftrun/data/json_lines.h"

/// Records of a file, read from front to back in blocks: a file may be larger than memory.
namespace sftrun::data {

/// A file's bytes, decompressed where it is compressed.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Up to `size` bytes; 0 at the end. @throws DataError
  virtual size_t read(char* buffer, size_t size) = 0;
  /// How much of the file itself was read, for progress.
  virtual uint64_t file_position() const = 0;
};

/// Consecutive records, not parsed yet: that is work for several threads.
class RecordBlock {
 public:
  virtual ~RecordBlock() = default;
  virtual size_t size() const = 0;
  virtual int64_t number(size_t index) const = 0;  ///< line or row in the file, from 1
  /// Thread-safe. @param where the record's place, for errors   @throws DataError
  virtual Json parse(size_t index, const std::string& where) const = 0;
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// The next records; null at the end. Never an empty block. @throws DataError
  virtual std::unique_ptr<RecordBlock> next() = 0;
  virtual bool is_table() const = 0;                    ///< numbers are those of rows, not of lines
  virtual bool is_plain_text() const { return false; }  ///< each line a {"text"}
  virtual uint64_t file_position() const = 0;
};

/// A file of records, for messages about them.
struct SourceFile {
  std::string path;
  bool is_table = false;
  std::string where(int64_t number) const;  ///< "file:line", or "file, row N"
  bool operator==(const SourceFile&) const = default;
};

/// A reader for what the file is, by its first bytes and its name: JSON lines (also as one JSON
/// array), CSV, TSV, Parquet, Arrow; of .txt also lines of plain text; gzip and Zstandard of the
/// texts.
/// @throws DataError for a file that cannot be read, or that is none of these
std::unique_ptr<RecordReader> open_records(const std::filesystem::path& file);

/// How much is read at once, and about how much of it is one block; neither shows in the records.
struct ReadSizes {
  size_t read_bytes = size_t{1} << 20, block_bytes = size_t{4} << 20;
  ReadLimits limits = {};
};

/// JSON lines, or one JSON array of objects, from a stream of text.
/// @param name for errors   @param may_be_text what begins with neither { nor [ is lines of text
/// @throws DataError for a record, or space without one, past the limits: a compressed file of a
/// few bytes may hold either without end
std::unique_ptr<RecordReader> read_json_records(std::unique_ptr<ByteStream> stream,
                                                const std::string& name, bool may_be_text = false,
                                                const ReadSizes& sizes = {});

}  // namespace sftrun::data
