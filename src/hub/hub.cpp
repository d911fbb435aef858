#include "sftrun/hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "api.h"
#include "cache.h"
#include "model_headers.h"
#include "selection.h"
#include "sftrun/core/dataset_card.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "snapshot_download.h"

namespace sftrun::hub {
namespace fs = std::filesystem;
namespace {

/// Returns the text of a repository's file; nullopt: not available.
using Read = std::function<std::optional<std::string>(const RemoteFile&)>;
/// If `Read` lacks a file that is needed for the selection, returns that file only.
using Choose = std::function<Selection(const std::vector<RemoteFile>&, const Read&)>;

/// The result of a look-up in the cache.
struct Cached {
  std::optional<Snapshot> snapshot;
  /// Whether `snapshot` is complete: by a list of the commit's files, or by the files
  bool certain = false;
  std::string missing;           ///< if there is no snapshot: what is missing
  std::optional<NoChoice> none;  ///< nothing can be selected from the known files
};

Snapshot make_snapshot(const RepoName& name, const std::string& commit, const RepoCache& cache,
                       const Selection& selection) {
  Snapshot snapshot{.name = name, .commit = commit, .directory = cache.snapshot(commit)};
  snapshot.path =
      selection.opened.empty() ? snapshot.directory : snapshot.directory / selection.opened;
  for (const RemoteFile& file : selection.files) snapshot.files.push_back(file.path);
  std::sort(snapshot.files.begin(), snapshot.files.end());
  return snapshot;
}

/// A shard for which there is no file, judged by the names of the other shards; empty: none.
std::string missing_shard(const std::vector<RemoteFile>& files) {
  for (const RemoteFile& file : files) {
    const size_t slash = file.path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : file.path.substr(0, slash + 1);
    const auto shard = shard_of(file.path.substr(folder.size()));
    for (int number = 1; shard && number <= shard->count; ++number) {
      const std::string path =
          fmt::format("{}model-{:05}-of-{:05}.safetensors", folder, number, shard->count);
      if (std::none_of(files.begin(), files.end(),
                       [&](const RemoteFile& other) { return other.path == path; }))
        return path;
    }
  }
  return {};
}

std::string first_missing(const std::vector<RemoteFile>& wanted, const RepoCache& cache,
                          const std::string& commit) {
  for (const RemoteFile& file : wanted) {
    if (!is_file_of(cache.pointer(commit, file.path), file.size)) return file.path;
  }
  return missing_shard(wanted);
}

Cached look_up(const RepoName& name, const RepoCache& cache, const Choose& choose) {
  const auto commit = cache.commit_of(name.revision_or_main());
  if (!commit || !is_folder(cache.snapshot(*commit)))
    return {.missing = fmt::format("revision {}", name.revision_or_main())};
  const auto noted = cache.noted_files(*commit);
  const Read read = [&](const RemoteFile& file) -> std::optional<std::string> {
    const fs::path path = cache.pointer(*commit, file.path);
    if (!is_file_of(path, file.size)) return std::nullopt;
    return read_text_file(path);
  };
  const Selection selection = choose(noted ? *noted : cache.local_files(*commit), read);
  if (selection.none) return {.certain = noted.has_value(), .none = selection.none};
  const std::string missing = first_missing(selection.files, cache, *commit);
  if (!missing.empty()) return {.missing = missing};
  const bool one_file =
      !name.path.empty() && selection.opened == name.path && selection.files.size() == 1;
  return {.snapshot = make_snapshot(name, *commit, cache, selection),
          .certain = noted || one_file || name.type == RepoType::kModel};
}

Snapshot from_cache(const Cached& cached, const Options& options) {
  const Snapshot& snapshot = *cached.snapshot;
  if (!cached.certain) {
    log::warn("{}: the cache has {}; it is unknown whether these are all files",
              snapshot.name.text(), counted(snapshot.files.size(), "file"));
  }
  if (!options.quiet) {
    log::info("{}: commit {} from the cache ({})", snapshot.name.text(),
              snapshot.commit.substr(0, 7), snapshot.directory.string());
  }
  return snapshot;
}

[[noreturn]] void not_in_cache(const RepoName& name, const Cached& cached,
                               const Settings& settings) {
  if (cached.none && cached.certain) throw DataError(cached.none->message, {}, cached.none->fix);
  const std::string detail =
      cached.none ? "in the cache: " + cached.none->message : cached.missing + " is missing";
  throw DataError(
      fmt::format("{} is not in the cache ({}), and {} forbids downloading it", name.text(), detail,
                  settings.offline),
      settings.cache_dir.string(),
      fmt::format(
          "unset {}, or run `sftrun download {}` on a machine with network access and copy the "
          "cache",
          settings.offline, name.text()));
}

/// Asks the hub. If the cache has a copy, the number of attempts is small and failures are ignored.
std::optional<Listing> ask_hub(const RepoName& name, const Cached& cached, const Settings& settings,
                               const Options& options) {
  RetryPolicy policy;
  constexpr int kAttempts = 4, kWithCopy = 2;
  policy.max_attempts = cached.snapshot ? kWithCopy : kAttempts;
  // Without a network, a name that was meant as a path is reported quickly.
  constexpr double kUnreachableS = 2;
  policy.max_unreachable_s = kUnreachableS;
  try {
    return HubApi(settings, policy, options.should_stop).list(name);
  } catch (const CommError& error) {
    if (!cached.snapshot) throw;
    log::warn("{}: the hub cannot be reached ({}); the files in the cache are used", name.text(),
              error.message());
    return std::nullopt;
  }
}

Snapshot download(const RepoName& name, const Listing& listing, const RepoCache& cache,
                  const Choose& choose, const Settings& settings, const Options& options) {
  uint64_t downloaded_bytes = 0;
  const auto fetch = [&](const std::vector<RemoteFile>& files, bool quiet) {
    Options how = options;
    how.quiet = how.quiet || quiet;
    downloaded_bytes += download_snapshot({name, listing.commit, files}, cache, settings, how);
  };
  const Selection selection = choose(listing.files, [&](const RemoteFile& file) {
    fetch({file}, /*quiet=*/true);
    return std::optional(read_text_file(cache.pointer(listing.commit, file.path)));
  });
  if (selection.none) throw DataError(selection.none->message, {}, selection.none->fix);
  Snapshot snapshot = make_snapshot(name, listing.commit, cache, selection);
  fetch(selection.files, /*quiet=*/false);
  snapshot.downloaded_bytes = downloaded_bytes;
  cache.note_files(listing.commit, listing.files);
  cache.write_ref(name.revision_or_main(), listing.commit);
  return snapshot;
}

Snapshot get(const RepoName& name, const Settings& settings, const Options& options,
             const Choose& choose) {
  const RepoCache cache(settings.cache_dir, name);
  const Cached cached = look_up(name, cache, choose);
  const bool settled = cached.snapshot && cached.certain && options.lookup == Lookup::kCacheFirst;
  if (settled || (cached.snapshot && !settings.offline.empty())) return from_cache(cached, options);
  if (!settings.offline.empty()) not_in_cache(name, cached, settings);
  const auto listing = ask_hub(name, cached, settings, options);
  if (!listing) return from_cache(cached, options);
  return download(name, *listing, cache, choose, settings, options);
}

}  // namespace

bool is_in_cache(const RepoName& name, const Settings& settings) {
  return RepoCache(settings.cache_dir, name).commit_of(name.revision_or_main()).has_value();
}

Snapshot get_model(const RepoName& name, ModelParts parts, const Settings& settings,
                   const Options& options) {
  SFTRUN_CHECK(name.type == RepoType::kModel);
  return get(name, settings, options, [&](const std::vector<RemoteFile>& files, const Read&) {
    return select_model(name, files, parts);
  });
}

Snapshot get_model_headers(const RepoName& name, const fs::path& folder,
                           const HasHeader& has_header, const Settings& settings,
                           const Options& options) {
  SFTRUN_CHECK(name.type == RepoType::kModel);
  const RepoCache cache(settings.cache_dir, name);
  const auto look = [&](ModelParts parts) {
    return look_up(name, cache, [&](const std::vector<RemoteFile>& files, const Read&) {
      return select_model(name, files, parts);
    });
  };
  const Cached whole = look(ModelParts::kAll);
  if (whole.snapshot && whole.certain) return from_cache(whole, options);
  if (!settings.offline.empty()) return get_model(name, ModelParts::kText, settings, options);
  const Cached text = look(ModelParts::kText);
  const auto listing = ask_hub(name, text, settings, options);
  if (!listing) return from_cache(text, options);
  Selection selection = select_model(name, listing->files, ModelParts::kAll);
  if (selection.none) return get_model(name, ModelParts::kText, settings, options);
  std::erase_if(selection.files, [](const RemoteFile& file) {
    return !is_weights(file.path) && !file.path.ends_with("config.json") &&
           !file.path.ends_with(".index.json");
  });
  Snapshot snapshot = make_snapshot(name, listing->commit, cache, selection);
  snapshot.downloaded_bytes = download_headers(name, listing->commit, selection.files, folder,
                                               has_header, settings, options);
  snapshot.directory = folder;
  snapshot.path = selection.opened.empty() ? folder : folder / selection.opened;
  if (!options.quiet) {
    log::info("{}: read the headers of {} (commit {}), {}", name.text(),
              counted(std::ssize(selection.files), "file"), listing->commit.substr(0, 7),
              format_bytes(snapshot.downloaded_bytes));
  }
  return snapshot;
}

Snapshot get_dataset(const RepoName& name, const DatasetRequest& request, const Settings& settings,
                     const Options& options) {
  SFTRUN_CHECK(name.type == RepoType::kDataset);
  return get(name, settings, options, [&](const std::vector<RemoteFile>& files, const Read& read) {
    const auto readme = dataset_card(name, files);
    if (!readme) return select_dataset(name, files, request, {});
    const auto text = read(*readme);
    if (!text) return Selection{.files = {*readme}};
    return select_dataset(name, files, request,
                          parse_dataset_card(*text, name.text() + ": " + readme->path));
  });
}

}  // namespace sftrun::hub
