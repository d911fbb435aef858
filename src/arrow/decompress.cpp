#include <arrow/io/compressed.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>

#include "gzip_members.h"
#include "open.h"
#include "sftrun/core/error.h"

namespace sftrun::arrow_readers {
namespace fs = std::filesystem;
namespace {

class Decompressed final : public data::ByteStream {
 public:
  Decompressed(const fs::path& file, Compression compression)
      : file_(file), opened_(open_input(file, compression)) {}

  size_t read(char* buffer, size_t size) override {
    return static_cast<size_t>(
        value_of(opened_.stream->Read(static_cast<int64_t>(size), buffer), file_));
  }
  uint64_t file_position() const override { return opened_.file_position(); }

 private:
  fs::path file_;
  OpenedInput opened_;
};

}  // namespace

uint64_t OpenedInput::file_position() const {
  const auto position = raw->Tell();
  return position.ok() ? static_cast<uint64_t>(*position) : 0;
}

OpenedInput open_input(const fs::path& file, Compression compression) {
  OpenedInput opened;
  opened.raw = value_of(arrow::io::ReadableFile::Open(file.string()), file);
  opened.stream = opened.raw;
  if (compression == Compression::kNone) return opened;
  const bool is_gzip = compression == Compression::kGzip;
  opened.codec = value_of(
      arrow::util::Codec::Create(is_gzip ? arrow::Compression::GZIP : arrow::Compression::ZSTD),
      file);
  if (is_gzip) {
    opened.stream = read_gzip_members(opened.raw, *opened.codec);
    return opened;
  }
  opened.stream =
      value_of(arrow::io::CompressedInputStream::Make(opened.codec.get(), opened.raw), file);
  return opened;
}

std::unique_ptr<data::ByteStream> decompress(const fs::path& file, Compression compression) {
  return std::make_unique<Decompressed>(file, compression);
}

}  // namespace sftrun::arrow_readers
