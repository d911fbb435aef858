#include "sftrun/config/server_url.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kSchemes[] = {"http://", "https://"};

/// Where the host begins; 0: there is no scheme.
size_t begin_of_authority(std::string_view url) {
  const std::string lower = ascii_lower(std::string(url));
  for (const std::string_view scheme : kSchemes)
    if (lower.starts_with(scheme)) return scheme.size();
  return 0;
}

std::string_view authority_of(std::string_view url) {
  const std::string_view rest = url.substr(begin_of_authority(url));
  return rest.substr(0, rest.find_first_of("/?#"));
}

bool is_port(std::string_view port) {
  constexpr size_t kDigits = 5;
  const bool is_number = !port.empty() && port.size() <= kDigits &&
                         std::all_of(port.begin(), port.end(),
                                     [](char digit) { return digit >= '0' && digit <= '9'; });
  constexpr int kMaxPort = 65535;
  const int number = is_number ? std::stoi(std::string(port)) : 0;
  return number > 0 && number <= kMaxPort;
}

}  // namespace

std::string fault_of_server_url(std::string_view url, UrlEnd end) {
  if (begin_of_authority(url) == 0) return "which does not begin with http:// or https://";
  const auto is_printed = [](char c) { return c > ' ' && c <= '~'; };
  if (!std::all_of(url.begin(), url.end(), is_printed))
    return "which has a space or a letter that no address has";
  const std::string_view authority = authority_of(url);
  if (authority.find('@') != std::string_view::npos)
    return "which has a name or a password, and settings stand in reports and model cards";
  const size_t closes = authority.rfind(']'), colon = authority.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (closes == std::string_view::npos || colon > closes);
  if (authority.substr(0, colon).empty()) return "which names no host";
  if (has_port && !is_port(authority.substr(colon + 1)))
    return "whose port is no number from 1 to 65535";
  if (end == UrlEnd::kPath && url.find_first_of("?#") != std::string_view::npos)
    return "which has a query";
  return {};
}

std::string without_credentials(std::string_view url) {
  const std::string_view authority = authority_of(url);
  const size_t at = authority.rfind('@');
  if (at == std::string_view::npos) return std::string(url);
  const size_t begin = begin_of_authority(url);
  return fmt::format("{}…@{}", url.substr(0, begin), url.substr(begin + at + 1));
}

}  // namespace sftrun::config
