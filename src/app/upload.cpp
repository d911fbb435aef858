#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands.h"
#include "published_files.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/hub/upload.h"
#include "sftrun/launch/stop_signals.h"

namespace sftrun::app {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxNamesLeftOut = 8;

/// @throws ConfigError
void require_repo_name(const std::string& repo) {
  const auto name = hub::parse_model_name(repo);
  if (name && name->id == repo) return;
  throw ConfigError(fmt::format("{} is not the name of a repository", excerpt(repo)),
                    "the command line",
                    name ? fmt::format("write {}; a branch is given by --revision", name->id)
                         : "write owner/name: up to 96 letters, digits, `-`, `_` and `.` each");
}

void require_branch(const std::string& branch) {
  if (branch.empty() || (hub::is_revision(branch) && !hub::is_commit(branch))) return;
  throw ConfigError(fmt::format("{} is not the name of a branch", excerpt(branch)),
                    "--revision on the command line", "name a branch, such as v2");
}

uint64_t bytes_of_all(const Publication& publication) {
  return std::accumulate(
      publication.files.begin(), publication.files.end(), uint64_t{0},
      [](uint64_t sum, const hub::LocalFile& file) { return sum + file.size(); });
}

void tell(const Publication& publication, const std::string& repo) {
  for (const std::string& warning : publication.warnings) log::warn("{}", warning);
  if (!publication.left_out.empty()) {
    std::vector<std::string> names = publication.left_out;
    const size_t more = names.size() - std::min(names.size(), kMaxNamesLeftOut);
    names.resize(names.size() - more);
    log::info("not uploaded: {}{}", join(names, ", "),
              more == 0 ? "" : fmt::format(" and {} more", more));
  }
  log::info("{} {}: {}, {}, to {}", publication.what, publication.source.string(),
            counted(publication.files.size(), "file"), format_bytes(bytes_of_all(publication)),
            repo);
}

ordered_json json_of_plan(const Publication& publication, const std::string& repo,
                          const UploadOptions& options) {
  ordered_json files = ordered_json::array();
  for (const hub::LocalFile& file : publication.files)
    files.push_back({{"path", file.path}, {"bytes", file.size()}});
  return {{"repo", repo},
          {"revision", options.revision.empty() ? "main" : options.revision},
          {"what", publication.what},
          {"source", publication.source.string()},
          {"dry_run", true},
          {"bytes", bytes_of_all(publication)},
          {"files", files},
          {"left_out", publication.left_out},
          {"warnings", publication.warnings}};
}

ordered_json json_of_result(const Publication& publication, const hub::UploadResult& result) {
  ordered_json files = ordered_json::array();
  for (const hub::UploadedFile& file : result.files)
    files.push_back({{"path", file.path},
                     {"bytes", file.size},
                     {"lfs", file.is_lfs},
                     {"status", hub::word_of(file.fate)}});
  return {{"repo", result.repo},
          {"revision", result.branch},
          {"what", publication.what},
          {"source", publication.source.string()},
          {"commit", result.commit},
          {"url", result.url},
          {"new_repo", result.is_new},
          {"new_commit", result.has_changed},
          {"sent_bytes", result.sent_bytes},
          {"files", files},
          {"left_out", publication.left_out},
          {"warnings", publication.warnings}};
}

int print_plan(const Publication& publication, const std::string& repo,
               const UploadOptions& options) {
  if (options.json) {
    std::printf("%s\n", json_of_plan(publication, repo, options).dump().c_str());
    return static_cast<int>(ExitCode::kDone);
  }
  for (const hub::LocalFile& file : publication.files)
    std::printf("%12s  %s\n", format_bytes(file.size()).c_str(), file.path.c_str());
  return static_cast<int>(ExitCode::kDone);
}

/// Ctrl-C and SIGTERM stop `body` with the signal's exit code.
template <class Body>
auto until_upload_stopped(Body&& body) {
  const launch::StopSignals stop;
  try {
    return body([&stop] { return stop.requested(); });
  } catch (const Error& error) {
    if (!stop.requested()) throw;
    throw Error(static_cast<ExitCode>(stop.exit_code()), error.message(), error.where(),
                error.fix());
  }
}

}  // namespace

int run_upload(const UploadOptions& options) {
  if (!options.repo.empty()) require_repo_name(options.repo);
  require_branch(options.revision);
  const Publication publication = find_publication(
      {.run = options.run, .what = options.what, .from = options.from, .base = options.base});
  return until_upload_stopped([&](const std::function<bool()>& should_stop) {
    const hub::Settings settings = hub::settings_from_environment();
    const std::string repo =
        options.repo.empty()
            ? fmt::format("{}/{}", hub::user_of_token(settings, should_stop), publication.name)
            : options.repo;
    tell(publication, repo);
    if (options.dry_run) return print_plan(publication, repo, options);
    const std::string message = options.message.empty()
                                    ? fmt::format("Upload {} with sftrun", publication.what)
                                    : options.message;
    const hub::UploadResult result = hub::upload({.repo = repo,
                                                  .branch = options.revision,
                                                  .is_private = options.is_private,
                                                  .message = message,
                                                  .files = publication.files,
                                                  .should_stop = should_stop},
                                                 settings);
    log::info("{}: {}", repo,
              result.has_changed
                  ? fmt::format("commit {}, {} sent", result.commit.substr(0, 7),
                                format_bytes(result.sent_bytes))
                  : fmt::format("nothing has changed since commit {}", result.commit.substr(0, 7)));
    const std::string text = options.json ? json_of_result(publication, result).dump() : result.url;
    std::printf("%s\n", text.c_str());
    return static_cast<int>(ExitCode::kDone);
  });
}

}  // namespace sftrun::app
