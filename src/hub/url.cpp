#include "url.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <cctype>
#include <memory>

namespace sftrun::hub {
namespace {

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
struct FreeText {
  void operator()(char* text) const { curl_free(text); }
};
using Url = std::unique_ptr<CURLU, FreeUrl>;

Url parsed(const std::string& text) {
  Url url(curl_url());
  if (!url || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return nullptr;
  return url;
}

std::string part(const Url& url, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, flags) != CURLUE_OK) return {};
  const std::unique_ptr<char, FreeText> owner(text);
  return text;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string origin_of(const std::string& text) {
  const Url url = parsed(text);
  if (!url) return {};
  const std::string scheme = lower(part(url, CURLUPART_SCHEME));
  const std::string host = lower(part(url, CURLUPART_HOST));
  if ((scheme != "http" && scheme != "https") || host.empty()) return {};
  return fmt::format("{}://{}:{}", scheme, host, part(url, CURLUPART_PORT, CURLU_DEFAULT_PORT));
}

std::string absolute_url(const std::string& location, const std::string& base) {
  const Url url = parsed(base);
  constexpr unsigned kAsCurlFollows =
      CURLU_NON_SUPPORT_SCHEME | CURLU_ALLOW_SPACE | CURLU_URLENCODE;
  if (!url || location.empty() ||
      curl_url_set(url.get(), CURLUPART_URL, location.c_str(), kAsCurlFollows) != CURLUE_OK)
    return {};
  return part(url, CURLUPART_URL);
}

std::string shown_url(const std::string& text) {
  const Url url = parsed(text);
  if (!url) return "a malformed URL";
  for (const CURLUPart hidden :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT})
    curl_url_set(url.get(), hidden, nullptr, 0);
  // A URL from a server may contain any bytes; messages contain printable characters only.
  std::string shown;
  for (const char c : part(url, CURLUPART_URL))
    shown += c > ' ' && c < 0x7f ? std::string(1, c)
                                 : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return shown;
}

std::string quoted(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ||
                       c == '.' || c == '~' || (c == '/' && keep_slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::string next_link(std::string_view header) {
  // RFC 8288: <https://…>; rel="next", <https://…>; rel="last"
  while (!header.empty()) {
    const size_t open = header.find('<'), close = header.find('>', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return {};
    const std::string_view target = header.substr(open + 1, close - open - 1);
    const size_t end = std::min(header.find('<', close), header.size());
    const std::string_view parameters = header.substr(close + 1, end - close - 1);
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos)
      return std::string(target);
    header.remove_prefix(end);
  }
  return {};
}

}  // namespace sftrun::hub
