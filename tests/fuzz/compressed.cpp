#include "memory_file.h"
#include "packed_text.h"
#include "records.h"

namespace {

using sftrun::data::Compression;

constexpr size_t kMax = size_t{64} << 10;  // of what a few bytes can stand for

/// What a file holds, read `step` bytes at a time; nothing where it is not sound.
std::optional<std::string> unpacked(std::string_view bytes, Compression compression, size_t step) {
  static const sftrun::fuzz::MemoryFile file;
  std::optional<std::string> text;
  sftrun::fuzz::expecting_errors([&] {
    const auto stream = sftrun_arrow_table()->decompress(file.holding(bytes), compression);
    std::string found, buffer(step, '\0');
    while (const size_t got = stream->read(buffer.data(), step)) {
      if (got > step) __builtin_trap();
      found.append(buffer, 0, got);
      if (found.size() > kMax) break;
    }
    text = std::move(found);
  });
  return text;
}

/// Packed into parts of any size, a text comes back; cut within a part it does not.
template <typename Pack>
void expect_back(std::string_view text, Compression compression, size_t step, Pack&& pack) {
  const std::string whole = sftrun::fuzz::packed(text, step, pack);
  if (unpacked(whole, compression, step) != std::string(text)) __builtin_trap();
  const size_t last_part = whole.size() - pack(text.substr((text.size() - 1) / step * step)).size();
  const size_t cut = last_part + 1 + text.size() % (whole.size() - last_part - 1);
  if (unpacked(std::string_view(whole).substr(0, cut), compression, step)) __builtin_trap();
}

}  // namespace

/// The bytes as a compressed file, and as a text to be packed; the first says in what steps.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  if (size < 2) return 0;
  const size_t step = 1 + data[0];
  const std::string_view bytes = fuzz::text_of(data + 1, size - 1);
  for (const Compression compression : {Compression::kGzip, Compression::kZstd}) {
    const auto at_once = unpacked(bytes, compression, kMax + 1);
    const auto in_steps = unpacked(bytes, compression, step);
    // What is too long was given up at different places.
    const bool gave_up =
        (at_once && at_once->size() > kMax) || (in_steps && in_steps->size() > kMax);
    if (!gave_up && at_once != in_steps) __builtin_trap();
  }
  expect_back(bytes, Compression::kGzip, step, fuzz::gzip_member);
  expect_back(bytes, Compression::kZstd, step, fuzz::zstd_frame);
  return 0;
}
