#include "media_path.h"

#include <optional>

#include "sftrun/core/presence.h"

namespace sftrun::data {
namespace {

constexpr std::string_view kFileScheme = "file://", kThisMachine = "localhost/";

std::string_view path_of_address(std::string_view address) {
  address.remove_prefix(kFileScheme.size());
  if (address.starts_with(kThisMachine)) address.remove_prefix(kThisMachine.size() - 1);
  return address;
}

/// 0 to 15; nothing for what is no hexadecimal digit.
std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool has_digits = text[i] == '%' && i + 2 < text.size();
    const auto high = has_digits ? hex_digit(text[i + 1]) : std::nullopt;
    const auto low = has_digits ? hex_digit(text[i + 2]) : std::nullopt;
    if (high && low) {
      decoded += static_cast<char>(*high * 16 + *low);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::filesystem::path below(const std::filesystem::path& folder,
                            const std::filesystem::path& path) {
  return path.is_absolute() ? path : folder / path;
}

}  // namespace

bool is_file_address(std::string_view text) {
  return text.starts_with(kFileScheme);
}

std::filesystem::path media_path(const std::string& written, const std::filesystem::path& folder) {
  if (!is_file_address(written)) return below(folder, written);
  const std::string_view path = path_of_address(written);
  const std::filesystem::path as_written = below(folder, path);
  return leads_to_file(as_written) ? as_written : below(folder, percent_decoded(path));
}

bool is_missing_below_folder(const std::string& written, const std::filesystem::path& file) {
  const std::filesystem::path path =
      is_file_address(written) ? path_of_address(written) : std::string_view(written);
  return !path.is_absolute() && !leads_to_file(file);
}

}  // namespace sftrun::data
