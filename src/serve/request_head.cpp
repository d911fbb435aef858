#include "request_head.h"

#include <algorithm>
#include <charconv>

#include "sftrun/core/strings.h"

namespace sftrun::serve {
namespace {

bool is_control(char c) {
  constexpr unsigned char kSpace = 0x20, kDelete = 0x7f;
  return static_cast<unsigned char>(c) < kSpace || static_cast<unsigned char>(c) == kDelete;
}

/// The byte of "%2F"; nullopt: these are no such three characters.
std::optional<char> escaped_byte(std::string_view text) {
  constexpr int kHex = 16;
  constexpr size_t kLength = 3;
  if (text.size() < kLength || text[0] != '%') return std::nullopt;
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + kLength, byte, kHex);
  if (error != std::errc() || end != text.data() + kLength) return std::nullopt;
  return static_cast<char>(byte);
}

/// Other uses of % stay as they are.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<char> byte = escaped_byte(text.substr(i));
    out += byte.value_or(text[i]);
    if (byte) i += 2;
  }
  return out;
}

/// Of a name or an IPv4 address (RFC 3986, reg-name).
bool is_name_character(char c) {
  constexpr std::string_view kOthers = "-._~%!$&'()*+,;=";
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return is_letter || (c >= '0' && c <= '9') || kOthers.find(c) != std::string_view::npos;
}

bool is_address_character(char c) {
  constexpr std::string_view kAddress = "0123456789abcdefABCDEF:.";
  return kAddress.find(c) != std::string_view::npos;
}

/// "http://" or "https://" is removed from the beginning.   @return whether it was there
bool take_scheme(std::string_view& text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (ascii_lower(std::string(text.substr(0, scheme.size()))) != scheme) continue;
    text.remove_prefix(scheme.size());
    return true;
  }
  return false;
}

}  // namespace

bool is_host(std::string_view text) {
  const bool is_address = text.starts_with('[');
  const size_t end = is_address ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == std::string_view::npos) return false;
  const std::string_view name = text.substr(is_address ? 1 : 0, is_address ? end - 1 : end);
  std::string_view port = text.substr(is_address ? end + 1 : end);
  if (!port.empty() && port[0] != ':') return false;
  if (!port.empty()) port.remove_prefix(1);
  return (!name.empty() || text.empty()) &&
         std::ranges::all_of(name, is_address ? is_address_character : is_name_character) &&
         port.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<RequestTarget> parse_target(std::string_view text) {
  RequestTarget target;
  if (take_scheme(text)) {
    const size_t end = std::min(text.find('/'), text.size());
    target.host = std::string(text.substr(0, end));
    if (target.host->empty() || !is_host(*target.host)) return std::nullopt;
    text.remove_prefix(end);
    if (text.empty()) text = "/";
  }
  target.path = decoded(text);
  if (std::ranges::any_of(target.path, is_control)) return std::nullopt;
  return target;
}

MediaType parse_media_type(std::string_view header) {
  MediaType found;
  const std::vector<std::string> parts = split(header, ';');
  for (const std::string& part : parts) {
    const std::string text = ascii_lower(std::string(trim(part)));
    constexpr std::string_view kCharset = "charset=";
    if (&part == &parts.front()) found.type = text;
    if (text.starts_with(kCharset)) found.charset = text.substr(kCharset.size());
  }
  std::erase(found.charset, '"');
  return found;
}

}  // namespace sftrun::serve
