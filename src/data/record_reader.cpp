#include "sftrun/data/record_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "arrow_library.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/data_extensions.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

class FileStream final : public ByteStream {
 public:
  explicit FileStream(const fs::path& path) : path_(path), fd_(open_for_reading(path)) {
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~FileStream() override { ::close(fd_); }
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  size_t read(char* buffer, size_t size) override {
    for (;;) {
      const ssize_t got = ::read(fd_, buffer, size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        throw DataError(fmt::format("cannot read file: {}", std::strerror(errno)), path_.string());
      position_ += static_cast<uint64_t>(got);
      return static_cast<size_t>(got);
    }
  }
  uint64_t file_position() const override { return position_; }

 private:
  fs::path path_;
  int fd_;
  uint64_t position_ = 0;
};

std::string first_bytes(ByteStream& stream) {
  std::string bytes(8, '\0');
  bytes.resize(stream.read(bytes.data(), bytes.size()));
  return bytes;
}

/// Whether a file begins as an object of JSON does, or a list of objects: `{"`, `[{`.
bool begins_as_json(std::string_view bytes) {
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  const std::string_view text = trim(bytes);
  if (text.size() < 2 || (text[0] != '{' && text[0] != '[')) return false;
  const std::string_view inner = trim(text.substr(1));
  return inner.starts_with(text[0] == '{' ? '"' : '{');
}

/// A table whose cells are read by their place would take keys and braces for text.
void require_no_json(std::string_view bytes, const fs::path& file, const std::string& extension) {
  if (!begins_as_json(bytes)) return;
  std::string name = file.filename().string();
  const size_t at = ascii_lower(name).rfind(extension);
  name.replace(at, extension.size(), ".jsonl");
  throw DataError(
      fmt::format("the file holds JSON, and is read as a table by its name ({})", extension),
      file.string(), fmt::format("rename it to {}", name));
}

/// Zstandard's, which decoders skip; pzstd begins with one.
bool is_skippable_frame(std::string_view magic) {
  return magic.size() >= 4 && magic.substr(1, 3) == "\x2a\x4d\x18" && (magic[0] & 0xf0) == 0x50;
}

Compression compression_of(std::string_view magic) {
  if (magic.starts_with("\x1f\x8b")) return Compression::kGzip;
  if (magic.starts_with("\x28\xb5\x2f\xfd") || is_skippable_frame(magic)) return Compression::kZstd;
  return Compression::kNone;
}

}  // namespace

std::string SourceFile::where(int64_t number) const {
  return fmt::format("{}{}{}", path, is_table ? ", row " : ":", number);
}

std::unique_ptr<RecordReader> open_records(const fs::path& file, LineForm text_form) {
  FileStream beginning(file);
  const std::string magic = first_bytes(beginning);
  const std::string extension = inner_extension(file);
  if (magic.starts_with("PAR1")) return arrow_library().read_parquet(file);
  // Arrow's file format, and the stream format that `datasets` writes: a continuation marker.
  if (magic.starts_with("ARROW1") ||
      (extension == ".arrow" && magic.starts_with("\xff\xff\xff\xff")))
    return arrow_library().read_arrow(file);
  if ((extension == ".parquet" || extension == ".arrow") && !magic.empty()) {
    throw DataError(
        fmt::format("this is not a {} file", extension.substr(1)), file.string(),
        "it is damaged, not downloaded (a Git LFS pointer?), or has the wrong extension");
  }
  const Compression compression = compression_of(magic);
  const bool is_csv = (extension == ".csv" || extension == ".tsv") && !magic.empty();
  if (is_csv) require_no_wide_encoding(magic, file.string());
  if (is_csv && compression == Compression::kNone) require_no_json(magic, file, extension);
  if (is_csv && compression != Compression::kNone)
    require_no_json(first_bytes(*arrow_library().decompress(file, compression)), file, extension);
  if (is_csv) return arrow_library().read_csv(file, compression, extension == ".csv" ? ',' : '\t');
  const LineForm form = extension == ".txt" ? text_form : LineForm::kJson;
  if (compression != Compression::kNone)
    return read_json_records(arrow_library().decompress(file, compression), file.string(), form);
  return read_json_records(std::make_unique<FileStream>(file), file.string(), form);
}

}  // namespace sftrun::data
