#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/util/compression.h>

namespace sftrun::arrow_readers {

/// Decompresses gzip's members one after the other. Zeros between and after them are padding, as in
/// gzip(1) and Python; Arrow's own stream rejects them.
/// @param codec must outlive the stream
std::shared_ptr<arrow::io::InputStream> read_gzip_members(
    std::shared_ptr<arrow::io::InputStream> raw, arrow::util::Codec& codec);

}  // namespace sftrun::arrow_readers
