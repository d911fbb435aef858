#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "model_source.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/hub/hub.h"

namespace sftrun::app {
namespace {

constexpr const char* kWhere = "the command line";

bool names_a_dataset(const std::string& name) {
  return name.starts_with("hf://datasets/") ||
         (hub::begins_as_hub_name(name) && name.find("/datasets/") != std::string::npos);
}

hub::RepoName name_of(const DownloadOptions& options) {
  const bool is_here = leads_to_file(options.name);
  const auto name = names_a_dataset(options.name) ? hub::parse_dataset_name(options.name)
                                                  : hub::parse_model_name(options.name);
  if (!name || is_here) {
    throw ConfigError(is_here ? fmt::format("{} is a local file or directory", options.name)
                              : fmt::format("{} is not a name on the hub", options.name),
                      kWhere,
                      name
                          ? fmt::format("for the repository on the hub write hf://{}", name->text())
                          : "write owner/name, or hf://owner/name/file.gguf for one file");
  }
  return hub::with_revision(*name, options.revision);
}

hub::Snapshot download(const hub::RepoName& name, const std::function<bool()>& should_stop) {
  const hub::Settings settings = hub::settings_from_environment();
  const hub::Options how{.lookup = hub::Lookup::kAskHub, .should_stop = should_stop};
  if (name.type == hub::RepoType::kDataset) return hub::get_dataset(name, {}, settings, how);
  try {
    return hub::get_model(name, hub::ModelParts::kAll, settings, how);
  } catch (const DataError& error) {
    if (!error.message().starts_with("no model ")) throw;
    throw DataError(error.message(), error.where(),
                    fmt::format("{}; for a data set write hf://datasets/{}", error.fix(), name.id));
  }
}

nlohmann::ordered_json to_json(const hub::Snapshot& snapshot) {
  return {{"name", snapshot.name.text()},
          {"repo", snapshot.name.id},
          {"revision", snapshot.name.revision_or_main()},
          {"commit", snapshot.commit},
          {"path", snapshot.path.string()},
          {"directory", snapshot.directory.string()},
          {"files", snapshot.files},
          {"downloaded_bytes", snapshot.downloaded_bytes}};
}

}  // namespace

int run_download(const DownloadOptions& options) {
  const hub::RepoName name = name_of(options);
  const hub::Snapshot snapshot = until_stopped(
      [&](const std::function<bool()>& should_stop) { return download(name, should_stop); });
  const std::string text = options.json ? to_json(snapshot).dump() : snapshot.path.string();
  std::printf("%s\n", text.c_str());
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
