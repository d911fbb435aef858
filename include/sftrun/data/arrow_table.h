#pragma once

#include <filesystem>
#include <memory>

#include "sftrun/data/record_reader.h"

/// What libsftrun_arrow.so brings: readers on Apache Arrow, loaded when a file needs one.
namespace sftrun::data {

enum class Compression { kNone, kGzip, kZstd };

/// Functions throw DataError. Columns of CSV files are texts; rows begin behind the header.
struct ArrowTable {
  std::unique_ptr<ByteStream> (*decompress)(const std::filesystem::path&, Compression);
  std::unique_ptr<RecordReader> (*read_csv)(const std::filesystem::path&, Compression,
                                            char delimiter);
  std::unique_ptr<RecordReader> (*read_parquet)(const std::filesystem::path&);
  std::unique_ptr<RecordReader> (*read_arrow)(const std::filesystem::path&);
};

}  // namespace sftrun::data
