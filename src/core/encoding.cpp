#include "sftrun/core/encoding.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun {

std::string_view wide_encoding(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr std::string_view kUtf16 = "UTF-16", kUtf32 = "UTF-32";
  if (bytes.starts_with("\xFF\xFE\0\0"sv) || bytes.starts_with("\0\0\xFE\xFF"sv)) return kUtf32;
  if (bytes.starts_with("\xFF\xFE"sv) || bytes.starts_with("\xFE\xFF"sv)) return kUtf16;
  // Without a mark: two characters of ASCII.
  if (bytes.size() < 4) return {};
  std::string zeros;
  for (const char byte : bytes.substr(0, 4)) zeros += byte == '\0' ? '0' : 'x';
  if (zeros == "x0x0" || zeros == "0x0x") return kUtf16;
  return zeros == "x000" || zeros == "000x" ? kUtf32 : std::string_view();
}

std::string encoding_fix(std::string_view encoding, std::string_view file) {
  return fmt::format("save it as UTF-8, or convert it: iconv -f {} -t UTF-8 {} > NEW", encoding,
                     shell_word(file));
}

void require_no_wide_encoding(std::string_view bytes, const std::string& file) {
  const std::string_view encoding = wide_encoding(bytes);
  if (encoding.empty()) return;
  throw DataError(fmt::format("the file is {}, not UTF-8", encoding), file,
                  encoding_fix(encoding, file));
}

void require_utf8(std::string_view bytes, const std::string& file) {
  require_no_wide_encoding(bytes, file);
  const size_t invalid = find_invalid_utf8(bytes);
  if (invalid == std::string_view::npos) return;
  const auto line =
      1 + std::count(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(invalid), '\n');
  throw DataError("invalid UTF-8", fmt::format("{}:{}", file, line),
                  encoding_fix("latin1", file) + " (or whatever its encoding is)");
}

std::string read_utf8_file(const std::filesystem::path& path) {
  std::string text = read_text_file(path);
  require_utf8(text, path.string());
  return text;
}

}  // namespace sftrun
