#include "sftrun/weights/gguf_source.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "sftrun/core/outside_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/gguf.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;

bool is_name(std::string_view text) {
  return !text.empty() && text[0] != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

/// "owner/name" from a name or a web address; "" for other texts and for repositories of GGUF
/// files.
std::string repository_in(std::string text) {
  const size_t scheme = text.find("://");
  if (scheme != std::string::npos) {
    text.erase(0, scheme + 3);
    const size_t host = text.find('/');
    static constexpr std::array<std::string_view, 3> kHosts = {"huggingface.co",
                                                               "www.huggingface.co", "hf.co"};
    const std::string name = ascii_lower(text.substr(0, host));
    if (host == std::string::npos || std::find(kHosts.begin(), kHosts.end(), name) == kHosts.end())
      return {};
    text.erase(0, host + 1);
  }
  std::vector<std::string> parts = split(text, '/');
  if (scheme != std::string::npos && parts.size() > 2) parts.resize(2);  // removes …/tree/main
  const bool is_data = scheme != std::string::npos && parts[0] == "datasets";
  if (is_data || parts.size() != 2 || !is_name(parts[0]) || !is_name(parts[1])) return {};
  return ascii_lower(parts[1]).ends_with("gguf") ? "" : parts[0] + "/" + parts[1];
}

/// Keeps letters and digits: "Llama 3.2 1B Instruct" and "llama-3.2-1b-instruct" are the same name.
std::string plain(const std::string& name) {
  std::string letters;
  for (const char c : ascii_lower(name)) {
    if (std::isalnum(static_cast<unsigned char>(c))) letters += c;
  }
  return letters;
}

bool is_the_model_itself(const json& metadata, const std::string& repository) {
  const auto count = metadata.find("general.base_model.count");
  if (count != metadata.end() && *count != json(1)) return false;  // a merge of several
  const std::string name = plain(text_under(metadata, "general.name"));
  return !name.empty() && (name == plain(text_under(metadata, "general.base_model.0.name")) ||
                           name == plain(repository.substr(repository.find('/') + 1)));
}

}  // namespace

std::optional<std::string> source_repository(const json& metadata) {
  for (const char* key :
       {"general.source.huggingface.repository", "general.source.repo_url", "general.source.url"}) {
    if (std::string found = repository_in(text_under(metadata, key)); !found.empty()) return found;
  }
  std::string base = repository_in(text_under(metadata, "general.base_model.0.repo_url"));
  if (base.empty() || !is_the_model_itself(metadata, base)) return std::nullopt;
  return base;
}

std::optional<std::string> source_repository(const std::filesystem::path& file) {
  return source_repository(GgufFile(file).metadata());
}

}  // namespace sftrun::weights
