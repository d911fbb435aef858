#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/util/compression.h>

#include "readers.h"

namespace sftrun::arrow_readers {

/// A file and the stream of its decompressed contents.
struct OpenedInput {
  std::shared_ptr<arrow::io::RandomAccessFile> raw;
  std::shared_ptr<arrow::util::Codec> codec;  ///< must outlive the stream
  std::shared_ptr<arrow::io::InputStream> stream;
  uint64_t file_position() const;
};
OpenedInput open_input(const std::filesystem::path& file, Compression compression);

}  // namespace sftrun::arrow_readers
