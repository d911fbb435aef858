#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

namespace sftrun::hub {

/// A text that must not be shown. It cannot be formatted or printed; `reveal` returns it.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  bool empty() const { return text_.empty(); }
  const std::string& reveal() const { return text_; }

 private:
  std::string text_;
};

/// Address, cache and timeouts of the hub, from huggingface_hub's environment variables.
struct Settings {
  std::string endpoint = "https://huggingface.co";  ///< HF_ENDPOINT, without a trailing slash
  std::filesystem::path cache_dir;  ///< HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, else HF_HOME/hub
  Secret token;  ///< HF_TOKEN, HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH
  std::string token_scheme = "Bearer";  ///< of the header Authorization
  std::string token_source;  ///< the variable or file that the token is from; empty: none
  std::string offline;  ///< the variable that disables network access (HF_HUB_OFFLINE); empty: none
  double connect_timeout_s = 10;  ///< HF_HUB_ETAG_TIMEOUT
  double stall_timeout_s = 10;  ///< HF_HUB_DOWNLOAD_TIMEOUT: maximum time without receiving a byte
  double retry_delay_s = 1;     ///< SFTRUN_HUB_RETRY_DELAY: delay before the first retry
  std::string ca_bundle;        ///< CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE
};

/// The value of a variable; nullptr: not set.
using Variables = std::function<const char*(const char* name)>;

/// @throws ConfigError naming the variable, for an endpoint that is not a URL or an invalid token
Settings settings_from(const Variables& variables);
Settings settings_from_environment();

}  // namespace sftrun::hub
