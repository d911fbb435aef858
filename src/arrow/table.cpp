#include "readers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun::arrow_readers {
namespace {

std::string fix_for(const std::string& reason) {
  const auto has = [&](const char* part) { return reason.find(part) != std::string::npos; };
  if (has("columns, got")) return kQuoteFix;
  if (has("is not closed before"))
    return "close the quote; a quote inside a quoted field is written as two";
  if (has("cannot infer number of columns")) return "the first line must name the columns";
  if (has("the header names more than"))
    return "keep the columns that data.fields or the format names";
  if (has("straddling object")) return "a row of over 16 MB: is a quote left open?";
  if (has("UTF8")) return "convert the file: iconv -f latin1 -t utf8 (or whatever its encoding is)";
  return "the file is damaged or cut off: fetch or write it again";
}

}  // namespace

std::string one_line(std::string reason) {
  constexpr size_t kLongest = 300;
  const bool is_text = is_valid_utf8(reason);  // Arrow quotes the file's own bytes
  for (char& c : reason) {
    if (c == '\n' || c == '\r') c = ' ';
    if (!is_text && (static_cast<unsigned char>(c) & 0x80U) != 0) c = '?';
  }
  if (reason.size() <= kLongest) return reason;
  return std::string(utf8_prefix(reason, kLongest)) + " …";
}

void fail(const std::string& reason, const std::filesystem::path& file) {
  throw DataError("cannot read: " + one_line(reason), file.string(), fix_for(reason));
}

void fail_for_memory(const std::filesystem::path& file) {
  throw DataError("a part of the table needs more memory than there is", file.string(),
                  "the file is damaged, or its row groups are too large: write it again with "
                  "smaller ones");
}

}  // namespace sftrun::arrow_readers

extern "C" __attribute__((visibility("default"))) const sftrun::data::ArrowTable*
sftrun_arrow_table() {
  using namespace sftrun::arrow_readers;
  static const sftrun::data::ArrowTable table{.decompress = decompress,
                                              .read_csv = read_csv,
                                              .read_parquet = read_parquet,
                                              .read_arrow = read_arrow};
  return &table;
}
