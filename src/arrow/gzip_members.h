#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/util/compression.h>

namespace sftrun::arrow_readers {

/// What gzip's members hold, one after the other. Zeros between and after them are padding, as
/// gzip(1) and Python take them; Arrow's own stream refuses them.
/// @param codec outlives the stream
std::shared_ptr<arrow::io::InputStream> read_gzip_members(
    std::shared_ptr<arrow::io::InputStream> raw, arrow::util::Codec& codec);

}  // namespace sftrun::arrow_readers
