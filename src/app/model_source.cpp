#include "model_source.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {
namespace {

constexpr const char* kWhatToGive =
    "give a directory in Hugging Face layout, a .gguf file, or a name on the hub: owner/name";

/// Only a name of the right form is looked for on the hub.
std::optional<hub::RepoName> name_on_hub(const ModelAsked& asked) {
  std::optional<hub::RepoName> name = hub::parse_model_name(asked.name);
  if (name) name = hub::with_revision(*name, asked.revision);
  return name;
}

/// The revision apart, as PEFT and transformers have it.
ModelSource source_of(hub::RepoName name, const std::filesystem::path& path) {
  const std::string revision = std::exchange(name.revision, {});
  return {path, name.text(), revision};
}

ModelSource find_on_hub(const hub::RepoName& name, const ModelAsked& asked) {
  const hub::Snapshot snapshot = until_stopped([&](const std::function<bool()>& should_stop) {
    return hub::get_model(name, asked.parts, hub::settings_from_environment(),
                          {.quiet = asked.quiet, .should_stop = should_stop});
  });
  return source_of(snapshot.name, snapshot.path);
}

/// What a run directory holds of results, where it is named itself: `runs/first` for
/// `runs/first/model`.
std::filesystem::path model_at(const ModelAsked& asked) {
  std::error_code ignored;
  const std::filesystem::path path = asked.name;
  const auto holds = [&](const char* file) {
    return std::filesystem::exists(path / file, ignored);
  };
  if (!std::filesystem::is_directory(path, ignored) || holds("config.json")) return path;
  if (holds("model/config.json")) return path / "model";
  if (holds("adapter/adapter_config.json")) {
    throw DataError(
        fmt::format("{} is a run's directory, which holds an adapter and no model", asked.name),
        asked.where, fmt::format("give the adapter: --adapter {}", (path / "adapter").string()));
  }
  return path;
}

}  // namespace

void rethrow_as_unknown_path(const Error& error, const std::string& path,
                             const std::string& place) {
  const std::string where =
      error.where().empty() ? place : fmt::format("{}; {}", place, error.where());
  if (hub::begins_as_hub_name(path)) throw Error(error.code(), error.message(), where, error.fix());
  const std::string near = near_path(path);
  throw Error(error.code(), fmt::format("no file or directory {}; {}", path, error.message()),
              where,
              fmt::format("{}; or, where a name on the hub is meant: {}",
                          near.empty() ? "check the path" : fmt::format("did you mean {}?", near),
                          error.fix()));
}

ModelSource find_model(const ModelAsked& asked) {
  std::error_code ignored;
  if (std::filesystem::exists(asked.name, ignored)) {
    if (!asked.revision.empty() && !asked.quiet)
      log::warn("model.revision has no effect: {} is a file or directory here", asked.name);
    const std::filesystem::path path = model_at(asked);
    return {path, path.string(), ""};
  }
  try {
    if (const auto name = name_on_hub(asked)) return find_on_hub(*name, asked);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kStopped) throw;
    rethrow_as_unknown_path(error, asked.name, asked.where);
  }
  const std::string near = near_path(asked.name);
  throw DataError(
      fmt::format("no such model: {}", asked.name), asked.where,
      near.empty() ? kWhatToGive : fmt::format("did you mean {}? else {}", near, kWhatToGive));
}

std::filesystem::path find_adapter(const ModelAsked& asked) {
  std::error_code ignored;
  if (std::filesystem::exists(asked.name, ignored)) return observe::adapter_at(asked.name);
  return hub::parse_model_name(asked.name) ? find_model(asked).path
                                           : std::filesystem::path(asked.name);
}

std::string near_path(const std::filesystem::path& path) {
  std::error_code code;
  const std::filesystem::path parent = path.parent_path();
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(parent.empty() ? "." : parent, code);
  for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code))
    names.push_back(entry->path().filename().string());
  const std::string near = nearest(path.filename().string(), names);
  return near.empty() ? "" : (parent / near).string();
}

ModelSource found_model(const ModelAsked& asked, const std::filesystem::path& path) {
  const auto name = name_on_hub(asked);
  return name ? source_of(*name, path) : ModelSource{path, asked.name, asked.revision};
}

hub::Snapshot until_stopped(
    const std::function<hub::Snapshot(const std::function<bool()>& should_stop)>& download) {
  const launch::StopSignals stop;
  try {
    return download([&stop] { return stop.requested(); });
  } catch (const Error& error) {
    if (!stop.requested()) throw;
    throw Error(static_cast<ExitCode>(stop.exit_code()), error.message(), error.where(),
                error.fix());
  }
}

}  // namespace sftrun::app
