#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The TFRecord framing of TensorFlow's event files (tensorflow/core/lib/io/record_writer.h):
///     uint64 length, uint32 masked_crc32c(length), data, uint32 masked_crc32c(data) little-endian
namespace sftrun::observe {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78).
uint32_t crc32c(std::string_view data);
/// Rotated right by 15 bits plus a constant, because the CRC of data that contains CRCs is weak.
uint32_t masked_crc32c(std::string_view data);

void append_tf_record(std::string& out, std::string_view data);
/// The records up to the end of the file or the first incomplete or corrupt one; views into `file`.
std::vector<std::string_view> read_tf_records(std::string_view file);

}  // namespace sftrun::observe
