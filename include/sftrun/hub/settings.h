#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

namespace sftrun::hub {

/// A text that must not be shown. It formats to nothing and prints to nothing: who needs it says
/// so.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  bool empty() const { return text_.empty(); }
  const std::string& reveal() const { return text_; }

 private:
  std::string text_;
};

/// Where the hub is, where its files are kept, and how patient to be. huggingface_hub's variables.
struct Settings {
  std::string endpoint = "https://huggingface.co";  ///< HF_ENDPOINT, without a slash at its end
  std::filesystem::path cache_dir;  ///< HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, else HF_HOME/hub
  Secret token;              ///< HF_TOKEN, HUGGING_FACE_HUB_TOKEN, else the file HF_TOKEN_PATH
  std::string token_source;  ///< the variable or file it is from; empty: there is none
  std::string offline;  ///< the variable that forbids the network (HF_HUB_OFFLINE); empty: none
  double connect_timeout_s = 10;  ///< HF_HUB_ETAG_TIMEOUT
  double stall_timeout_s = 10;    ///< HF_HUB_DOWNLOAD_TIMEOUT: this long without a byte is a stall
  double retry_delay_s = 1;       ///< SFTRUN_HUB_RETRY_DELAY: the first pause between attempts
  std::string ca_bundle;          ///< CURL_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE
};

/// A variable's value; nullptr: not set.
using Variables = std::function<const char*(const char* name)>;

/// @throws ConfigError naming the variable, for an endpoint that is no URL or a token that cannot
/// be one
Settings settings_from(const Variables& variables);
Settings settings_from_environment();

}  // namespace sftrun::hub
