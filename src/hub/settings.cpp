#include "sftrun/hub/settings.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::hub {
namespace {

namespace fs = std::filesystem;

/// The first of `names` that is set and not empty, with its value.
struct Found {
  std::string name, value;
};
template <size_t N>
std::optional<Found> first_of(const Variables& variables, const std::array<const char*, N>& names) {
  for (const char* name : names) {
    const char* value = variables(name);
    if (value != nullptr && *value != '\0') return Found{name, value};
  }
  return std::nullopt;
}
std::optional<std::string> value_of(const Variables& variables, const char* name) {
  const auto found = first_of<1>(variables, {name});
  return found ? std::optional(found->value) : std::nullopt;
}

std::string home(const Variables& variables) {
  if (const auto home = value_of(variables, "HOME")) return *home;
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "/";
}

/// Expands $NAME and ${NAME} like Python's expandvars: variables that are not set stay as written.
std::string with_variables(const std::string& text, const Variables& variables) {
  std::string expanded;
  for (size_t i = 0; i < text.size();) {
    const bool braced = text.compare(i, 2, "${") == 0;
    size_t end = i + (braced ? 2 : 1);
    const size_t begin = end;
    while (text[i] == '$' && end < text.size() && is_word_char(text[end])) ++end;
    const std::string name = text.substr(std::min(begin, text.size()), end - begin);
    const bool whole = text[i] == '$' && !name.empty() && (!braced || text[end] == '}');
    const char* value = whole ? variables(name.c_str()) : nullptr;
    const size_t next = value == nullptr ? i + 1 : end + (braced ? 1 : 0);
    expanded += value == nullptr ? text.substr(i, 1) : std::string(value);
    i = next;
  }
  return expanded;
}

fs::path expanded_path(const std::string& text, const Variables& variables) {
  const bool at_home = text == "~" || text.starts_with("~/");
  return with_variables(at_home ? home(variables) + text.substr(1) : text, variables);
}

bool is_true(const Variables& variables, const char* name) {
  std::string value = value_of(variables, name).value_or("");
  for (char& c : value) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

double seconds(const Variables& variables, const char* name, double otherwise) {
  const auto text = value_of(variables, name);
  if (!text) return otherwise;
  char* end = nullptr;
  const double number = std::strtod(text->c_str(), &end);
  constexpr double kLongest = 86400;
  if (end != text->c_str() + text->size() || !(number >= 0 && number <= kLongest)) {
    throw ConfigError(fmt::format("{}={} is not a number of seconds", name, *text),
                      "the environment",
                      fmt::format("set it to, say, {:g}, or unset it", otherwise));
  }
  return number;
}

std::string endpoint(const Variables& variables) {
  auto url = value_of(variables, "HF_ENDPOINT");
  if (!url) return Settings{}.endpoint;
  while (url->ends_with('/')) url->pop_back();
  if (!url->starts_with("https://") && !url->starts_with("http://")) {
    throw ConfigError("HF_ENDPOINT is not a URL: it must begin with https:// or http://",
                      "HF_ENDPOINT in the environment",
                      "write, for example, https://huggingface.co");
  }
  return *url;
}

/// Cleaned as in huggingface_hub. Only visible characters are allowed, because others could end the
/// HTTP header.
std::string cleaned_token(const std::string& text, const std::string& source) {
  std::string token(trim(text));
  std::erase_if(token, [](char c) { return c == '\n' || c == '\r'; });
  if (std::any_of(token.begin(), token.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw ConfigError(
        "the token has invalid characters", source,
        "log in again (hf auth login), or set HF_TOKEN to the token without other characters");
  }
  return token;
}

void read_token(Settings& settings, const fs::path& hf_home, const Variables& variables) {
  if (is_true(variables, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) return;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string token = cleaned_token(value_of(variables, name).value_or(""), name);
    if (token.empty()) continue;
    settings.token = Secret(token);
    settings.token_source = name;
    return;
  }
  const auto named = value_of(variables, "HF_TOKEN_PATH");
  const fs::path file = named ? expanded_path(*named, variables) : hf_home / "token";
  if (!is_plain_file(file)) return;
  settings.token = Secret(cleaned_token(read_text_file(file), file.string()));
  if (!settings.token.empty()) settings.token_source = file.string();
}

fs::path hf_home(const Variables& variables) {
  if (const auto named = value_of(variables, "HF_HOME")) return expanded_path(*named, variables);
  if (const auto cache = value_of(variables, "XDG_CACHE_HOME"))
    return expanded_path(*cache, variables) / "huggingface";
  return fs::path(home(variables)) / ".cache" / "huggingface";
}

}  // namespace

Settings settings_from(const Variables& variables) {
  Settings settings;
  const fs::path home = hf_home(variables);
  settings.endpoint = endpoint(variables);
  const auto cache = first_of<2>(variables, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache_dir = absolute_path(cache ? expanded_path(cache->value, variables) : home / "hub");
  read_token(settings, home, variables);
  for (const char* name : {"TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE"}) {
    if (is_true(variables, name)) settings.offline = name;
  }
  settings.connect_timeout_s =
      seconds(variables, "HF_HUB_ETAG_TIMEOUT", settings.connect_timeout_s);
  settings.stall_timeout_s =
      seconds(variables, "HF_HUB_DOWNLOAD_TIMEOUT", settings.stall_timeout_s);
  settings.retry_delay_s = seconds(variables, "SFTRUN_HUB_RETRY_DELAY", settings.retry_delay_s);
  const auto bundle =
      first_of<3>(variables, {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"});
  if (bundle) settings.ca_bundle = bundle->value;
  return settings;
}

Settings settings_from_environment() {
  return settings_from([](const char* name) { return std::getenv(name); });
}

}  // namespace sftrun::hub
