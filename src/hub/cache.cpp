#include "cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::hub {
namespace fs = std::filesystem;
namespace {

/// models--owner--name
std::string folder_name(const RepoName& name) {
  std::string folder = name.type == RepoType::kDataset ? "datasets--" : "models--";
  for (const char c : name.id) folder += c == '/' ? std::string("--") : std::string(1, c);
  return folder;
}

void make_folder(const fs::path& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (!code) return;
  throw DeviceError(fmt::format("cannot create directory: {}", code.message()), path.string(),
                    "set HF_HOME or HF_HUB_CACHE to a directory with write permission");
}

/// https://bford.info/cachedir/
constexpr std::string_view kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by sftrun, for huggingface_hub's cache.\n"
    "# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/\n";

constexpr const char* kTheirNotes = "trees";
constexpr const char* kOurNotes = "sftrun-trees";

/// A commit's files with their sizes; nullopt: no such note, or an invalid one.
std::optional<std::vector<RemoteFile>> read_note(const fs::path& file) {
  if (!is_plain_file(file)) return std::nullopt;
  const auto tree = nlohmann::json::parse(read_text_file(file), nullptr, false);
  const auto entries = tree.is_object() ? tree.find("files") : tree.end();
  if (entries == tree.end() || !entries->is_object()) return std::nullopt;
  std::vector<RemoteFile> files;
  for (const auto& [path, entry] : entries->items()) {
    if (!entry.is_object()) return std::nullopt;
    const auto size = entry.contains("lfs_size") ? entry.find("lfs_size") : entry.find("size");
    if (!is_relative_path(path) || size == entry.end() || !size->is_number_unsigned())
      return std::nullopt;
    files.push_back({path, size->get<uint64_t>()});
  }
  return files;
}

}  // namespace

bool is_file_of(const fs::path& path, uint64_t size) {
  std::error_code code;
  return fs::is_regular_file(path, code) && fs::file_size(path, code) == size && !code;
}

RepoCache::RepoCache(fs::path cache_dir, const RepoName& name)
    : cache_dir_(std::move(cache_dir)), folder_(cache_dir_ / folder_name(name)) {}

fs::path RepoCache::blob(const std::string& etag) const {
  return folder_ / "blobs" / etag;
}
fs::path RepoCache::incomplete(const std::string& etag) const {
  return folder_ / "blobs" / (etag + ".incomplete");
}
fs::path RepoCache::snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}
fs::path RepoCache::pointer(const std::string& commit, const std::string& path) const {
  return snapshot(commit) / path;
}
fs::path RepoCache::lock(const std::string& etag) const {
  return cache_dir_ / ".locks" / folder_.filename() / (etag + ".lock");
}

std::optional<std::string> RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const fs::path file = folder_ / "refs" / revision;
  if (!is_plain_file(file)) return std::nullopt;
  const std::string commit(trim(read_text_file(file)));
  return is_commit(commit) ? std::optional(commit) : std::nullopt;
}

void RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (commit_of(revision) == commit) return;
  const fs::path file = folder_ / "refs" / revision;
  make_folder(file.parent_path());
  write_file_atomically(file, commit);  // without a newline, as huggingface_hub expects
}

void RepoCache::link(const std::string& commit, const std::string& path,
                     const std::string& etag) const {
  static std::atomic<unsigned> counter{0};
  const fs::path target = pointer(commit, path);
  make_folder(target.parent_path());
  const fs::path relative = blob(etag).lexically_relative(target.parent_path());
  const fs::path temporary =
      folder_ / "snapshots" / fmt::format(".tmp-{}-{}", ::getpid(), counter++);
  std::error_code code;
  fs::create_symlink(relative, temporary, code);
  if (!code) fs::rename(temporary, target, code);
  if (!code) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw DeviceError(fmt::format("cannot link the file into the snapshot: {}", code.message()),
                    target.string(),
                    "set HF_HOME or HF_HUB_CACHE to a directory of a file system with symbolic "
                    "links");
}

void RepoCache::make_folders(const std::string& commit) const {
  for (const fs::path& path : {folder_ / "blobs", snapshot(commit), lock("").parent_path()})
    make_folder(path);
  const fs::path tag = cache_dir_ / "CACHEDIR.TAG";
  if (!leads_to_file(tag)) write_file_atomically(tag, kCacheTag);
}

std::vector<RemoteFile> RepoCache::local_files(const std::string& commit) const {
  std::vector<RemoteFile> files;
  std::error_code code;
  const fs::path root = snapshot(commit);
  for (auto entry = fs::recursive_directory_iterator(root, code);
       !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    std::error_code gone;
    if (!entry->is_regular_file(gone)) continue;  // follows the link
    const uint64_t size = entry->file_size(gone);
    if (!gone) files.push_back({entry->path().lexically_relative(root).generic_string(), size});
  }
  std::sort(files.begin(), files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  return files;
}

std::optional<std::vector<RemoteFile>> RepoCache::noted_files(const std::string& commit) const {
  for (const char* folder : {kTheirNotes, kOurNotes}) {
    if (auto files = read_note(folder_ / folder / (commit + ".json"))) return files;
  }
  return std::nullopt;
}

void RepoCache::note_files(const std::string& commit, const std::vector<RemoteFile>& files) const {
  // Reading a longer note would take longer than asking the hub again
  constexpr size_t kMany = 100'000;
  if (files.size() > kMany) return;
  nlohmann::ordered_json note = {{"format_version", 1},
                                 {"files", nlohmann::ordered_json::object()}};
  for (const RemoteFile& file : files) note["files"][file.path] = {{"size", file.size}};
  make_folder(folder_ / kOurNotes);
  write_file_atomically(folder_ / kOurNotes / (commit + ".json"), note.dump(1));
}

}  // namespace sftrun::hub
