#pragma once

#include <filesystem>
#include <memory>

#include "sftrun/data/record_reader.h"

/// Functions of libsftrun_arrow.so: readers on Apache Arrow. The library is loaded when a file
/// needs it.
namespace sftrun::data {

enum class Compression { kNone, kGzip, kZstd };

/// The functions throw DataError. Columns of CSV files are strings; rows are counted after the
/// header.
struct ArrowTable {
  std::unique_ptr<ByteStream> (*decompress)(const std::filesystem::path&, Compression);
  std::unique_ptr<RecordReader> (*read_csv)(const std::filesystem::path&, Compression,
                                            char delimiter);
  std::unique_ptr<RecordReader> (*read_parquet)(const std::filesystem::path&);
  std::unique_ptr<RecordReader> (*read_arrow)(const std::filesystem::path&);
};

}  // namespace sftrun::data
