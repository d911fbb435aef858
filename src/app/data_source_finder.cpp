#include "data_source_finder.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "model_source.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/data/data_extensions.h"

namespace sftrun::app {
namespace {

/// The path in a snapshot that is read; of a pattern, the matching files.
std::string opened(const hub::Snapshot& snapshot) {
  const bool is_pattern = holds_wildcards(snapshot.name.path);
  return (is_pattern ? snapshot.directory / snapshot.name.path : snapshot.path).string();
}

/// hf://datasets/owner/name…, or owner/name without the extension of a data file.
std::optional<hub::RepoName> name_by_form(const std::string& path) {
  if (hub::begins_as_hub_name(path)) return hub::parse_dataset_name(path);
  if (leads_to_file(path) || is_glob(path)) return std::nullopt;
  const std::vector<std::string>& extensions = data::data_extensions();
  const bool is_file =
      std::any_of(extensions.begin(), extensions.end(),
                  [&](const std::string& extension) { return path.ends_with(extension); });
  return is_file ? std::nullopt : hub::parse_dataset_name(path);
}

}  // namespace

void find_data_source(config::DataSource& source, SplitRole role, const std::string& where,
                      bool quiet) {
  const auto name = name_by_form(source.path);
  if (!name) return;
  if (is_path_here(source.path, *name)) {
    throw DataError(
        fmt::format("no file or directory {}", shown_path(source.path)), where,
        fix_for_path(source.path,
                     fmt::format("for a data set on the hub write hf://datasets/{}", source.path),
                     PathKind::kData));
  }
  hub::DatasetRequest request;
  request.subset = source.name;
  request.split = source.split;
  request.defaults = default_splits(role);
  request.extensions = data::data_extensions();
  try {
    source.path = opened(until_stopped([&](const std::function<bool()>& should_stop) {
      return hub::get_dataset(*name, request, hub::settings_from_environment(),
                              {.quiet = quiet, .should_stop = should_stop});
    }));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kStopped) throw;
    rethrow_as_unknown_path(error, source.path, where, PathKind::kData);
  }
}

bool may_be_on_hub(const std::string& path) {
  if (hub::begins_as_hub_name(path)) return true;
  const auto name = name_by_form(path);
  return name && !is_path_here(path, *name);
}

void find_data(config::LoadedConfig& loaded, bool quiet) {
  for (config::DataSource& source : loaded.config.data.train)
    find_data_source(source, SplitRole::kTrain, loaded.place_of("data.train"), quiet);
  for (config::DataSource& source : loaded.config.data.val)
    find_data_source(source, SplitRole::kValidation, loaded.place_of("data.val"), quiet);
}

}  // namespace sftrun::app
