#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sftrun {

/// "UTF-16" or "UTF-32" if a file's bytes are text in one of these, by their byte order mark, or by the zero bytes among the first
/// four; else empty. Text readers take UTF-8 only.
std::string_view wide_encoding(std::string_view bytes);

/// The fix for a file in another encoding: "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW".
std::string encoding_fix(std::string_view encoding, std::string_view file);

/// @throws DataError naming the encoding and `file` if the bytes are text in UTF-16 or UTF-32
void require_no_wide_encoding(std::string_view bytes, const std::string& file);

/// The same, and @throws DataError naming the line of bytes that are not UTF-8
void require_utf8(std::string_view bytes, const std::string& file);

/// As read_text_file, for files that are text. @throws DataError also for what is not UTF-8
std::string read_utf8_file(const std::filesystem::path& path);

}  // namespace sftrun
