#pragma once

#include <zlib.h>

#include <span>
#include <vector>

#include "formats.h"

namespace sftrun::images::fixtures {

/// Writes the right checksums into the chunks of a PNG file, without which its damages would not be reached.
inline void repair_checksums(std::vector<std::byte>& bytes) {
  auto* data = reinterpret_cast<unsigned char*>(bytes.data());
  const std::span file(data, bytes.size());
  if (!is_png(file)) return;
  PngChunks chunks(file);
  for (PngChunk chunk; chunks.next(chunk, false);) {
    const auto at = reinterpret_cast<const unsigned char*>(chunk.name.data()) - data;
    if (chunk.data.size() < chunk.size || bytes.size() - static_cast<size_t>(at) < chunk.size + 8)
      break;
    const auto crc =
        crc32(crc32(0, data + at, 4), chunk.data.data(), static_cast<uInt>(chunk.size));
    for (size_t i = 0; i < 4; ++i)
      data[static_cast<size_t>(at) + 4 + chunk.size + i] =
          static_cast<unsigned char>(crc >> (24 - 8 * i));
  }
}

}  // namespace sftrun::images::fixtures
