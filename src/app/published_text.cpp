#include "published_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/hub/repo_name.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxDepthOfSettings = 64;
constexpr const char *kAdapterConfig = "adapter_config.json", *kBaseFile = "sftrun_base.json";

bool is_path_of_this_machine(const std::string& model) {
  return !model.empty() &&
         (model.front() == '/' || model.front() == '~' || model.starts_with("./") ||
          model.starts_with("../") || leads_to_file(model) || !hub::parse_model_name(model));
}

/// …/models--owner--name/snapshots/<commit>[/…]
std::optional<BaseOnHub> of_cache_path(const std::string& path) {
  constexpr std::string_view kFolder = "models--", kSnapshots = "snapshots";
  const std::vector<std::string> parts = split(path, '/');
  for (size_t i = 0; i + 2 < parts.size(); ++i) {
    if (!parts[i].starts_with(kFolder) || parts[i + 1] != kSnapshots) continue;
    std::string id = parts[i].substr(kFolder.size());
    const size_t at = id.find("--");
    if (at == std::string::npos) return std::nullopt;
    id.replace(at, 2, "/");
    if (!hub::parse_model_name(id)) return std::nullopt;
    return BaseOnHub{.name = id, .revision = hub::is_commit(parts[i + 2]) ? parts[i + 2] : ""};
  }
  return std::nullopt;
}

std::string last_part_of(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

std::string read_if_there(const fs::path& file) {
  return is_plain_file(file) ? read_text_file(file) : std::string();
}

/// The name of the model that a file of an adapter or a model names, with its key.
std::string model_in(const fs::path& folder) {
  for (const auto& [file, key] :
       {std::pair{kAdapterConfig, "base_model_name_or_path"}, std::pair{kBaseFile, "model"},
        std::pair{"config.json", "_name_or_path"}}) {
    const auto settings = parse_outside_json(read_if_there(folder / file), kMaxDepthOfSettings);
    if (const std::string model = text_under(settings, key); !model.empty()) return model;
  }
  return {};
}

std::string home_directory() {
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe)
  const std::string path = home == nullptr ? "" : home;
  return path.size() > 1 ? path : "";
}

/// The end of a word that begins at `begin`.
size_t end_of_token(std::string_view text, size_t begin) {
  while (begin < text.size() && (std::isalnum(static_cast<unsigned char>(text[begin])) != 0 ||
                                 text[begin] == '_' || text[begin] == '-'))
    ++begin;
  return begin;
}

/// The name of a model under `key`: on the hub, or without the folders of this machine.
void put_base(ordered_json& settings, const char* key, const LocalPaths& paths) {
  const std::string model = text_under(settings, key);
  if (model.empty()) return;
  const auto known = model == paths.model ? paths.known : base_on_hub(model);
  if (!known) {
    if (is_path_of_this_machine(model)) settings[key] = last_part_of(model);
    return;
  }
  if (known->name == model) return;
  settings[key] = known->name;
  const auto revision = settings.find("revision");
  if (revision != settings.end() && !known->revision.empty()) *revision = known->revision;
}

}  // namespace

std::optional<BaseOnHub> base_on_hub(const std::string& model) {
  if (auto cached = of_cache_path(model)) return cached;
  if (model.empty() || is_path_of_this_machine(model)) return std::nullopt;
  const auto name = hub::parse_model_name(model);
  return BaseOnHub{.name = name->id, .revision = name->revision};
}

LocalPaths local_paths_of(const fs::path& folder, const std::string& base) {
  LocalPaths paths{.model = model_in(folder)};
  if (!base.empty()) {
    const auto name = hub::parse_model_name(base);
    if (!name || !name->path.empty())
      throw ConfigError(fmt::format("{} is not a model on the hub", base),
                        "--base on the command line", "write owner/name");
    paths.known = BaseOnHub{.name = name->id, .revision = name->revision};
  } else {
    paths.known = base_on_hub(paths.model);
  }
  if (paths.model.find('/') != std::string::npos && is_path_of_this_machine(paths.model))
    paths.texts.push_back(
        {paths.model, paths.known ? paths.known->name : "path/to/" + last_part_of(paths.model)});
  return paths;
}

std::string published_text(const std::string& file_name, const std::string& text,
                           const LocalPaths& paths) {
  std::string published = text;
  const bool is_adapter = file_name == kAdapterConfig, is_base = file_name == kBaseFile;
  if (is_adapter || is_base || file_name == "config.json") {
    ordered_json settings = parse_outside_json(text, kMaxDepthOfSettings);
    const ordered_json before = settings;
    if (settings.is_object())
      put_base(settings,
               is_adapter ? "base_model_name_or_path"
               : is_base  ? "model"
                          : "_name_or_path",
               paths);
    if (settings != before) published = settings.dump(2) + "\n";
  }
  for (const Replacement& replacement : paths.texts) {
    for (size_t at = 0; (at = published.find(replacement.from, at)) != std::string::npos;
         at += replacement.to.size())
      published.replace(at, replacement.from.size(), replacement.to);
  }
  return published;
}

std::string secret_in(std::string_view text, const std::string& token) {
  if (!token.empty() && text.find(token) != std::string_view::npos) return "your token of the hub";
  struct Kind {
    std::string_view prefix;
    size_t min_size;
    const char* name;
  };
  constexpr std::array<Kind, 7> kKinds = {{{"hf_", 33, "a Hugging Face token"},
                                           {"sk-", 40, "an API key"},
                                           {"ghp_", 36, "a GitHub token"},
                                           {"github_pat_", 40, "a GitHub token"},
                                           {"glpat-", 26, "a GitLab token"},
                                           {"AKIA", 20, "an AWS access key"},
                                           {"-----BEGIN", 0, "a private key"}}};
  for (const Kind& kind : kKinds) {
    for (size_t at = 0; (at = text.find(kind.prefix, at)) != std::string_view::npos; ++at) {
      const bool begins_word = at == 0 || end_of_token(text, at - 1) == at - 1;
      const size_t end = end_of_token(text, at);
      const bool is_key = kind.min_size == 0
                              ? text.substr(at, 60).find("PRIVATE KEY") != std::string_view::npos
                              : end - at >= kind.min_size;
      if (begins_word && is_key) return kind.name;
    }
  }
  return {};
}

std::string local_path_in(std::string_view text) {
  std::vector<std::string> prefixes = {"/home/", "/Users/", "/root/"};
  if (const std::string home = home_directory(); !home.empty()) prefixes.push_back(home + "/");
  for (const std::string& prefix : prefixes) {
    for (size_t at = 0; (at = text.find(prefix, at)) != std::string_view::npos; ++at) {
      const bool begins_path =
          at == 0 || std::string_view(" \t\n\"'`(=[").find(text[at - 1]) != std::string_view::npos;
      if (!begins_path) continue;
      const size_t end = text.find_first_of(" \t\n\"'`)]", at);
      return std::string(text.substr(at, end == std::string_view::npos ? end : end - at));
    }
  }
  return {};
}

}  // namespace sftrun::app
