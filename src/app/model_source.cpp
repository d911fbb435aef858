#include "model_source.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/launch/stop_signals.h"

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

/// The same error, with the place that the name is from.
[[noreturn]] void rethrow_with_place(const Error& error, const ModelAsked& asked) {
  const bool may_be_path = !asked.name.starts_with("hf://");
  const bool about_name = error.code() == ExitCode::kData || error.code() == ExitCode::kUsage;
  throw Error(
      error.code(),
      may_be_path && about_name
          ? fmt::format("no file or directory {}; {}", asked.name, error.message())
          : error.message(),
      error.where().empty() ? asked.where : fmt::format("{}; {}", asked.where, error.where()),
      error.fix());
}

}  // namespace

ModelSource find_model(const ModelAsked& asked) {
  std::error_code ignored;
  if (std::filesystem::exists(asked.name, ignored)) {
    if (!asked.revision.empty() && !asked.quiet)
      log::warn("model.revision has no effect: {} is a file or directory here", asked.name);
    return {asked.name, asked.name, ""};
  }
  try {
    if (const auto name = name_on_hub(asked)) return find_on_hub(*name, asked);
  } catch (const Error& error) {
    rethrow_with_place(error, asked);
  }
  throw DataError(fmt::format("no such model: {}", asked.name), asked.where, kWhatToGive);
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
