#include "source_files.h"

#include <algorithm>
#include <array>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/data_extensions.h"
#include "sftrun/data/dataset.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

/// What `datasets` writes beside the data.
constexpr std::array kNoData = {"dataset_info.json", "dataset_dict.json", "state.json",
                                "dataset_infos.json"};

bool is_data(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.starts_with('.') || std::find(kNoData.begin(), kNoData.end(), name) != kNoData.end())
    return false;
  if (name.starts_with("cache-") && name.ends_with(".arrow")) return false;  // of datasets' map()
  return has_data_extension(file);
}

std::vector<fs::path> data_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  fs::recursive_directory_iterator entry(folder, code);
  for (; !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    std::error_code ignored;
    if (hidden && entry->is_directory(ignored)) entry.disable_recursion_pending();
    if (!hidden && entry->is_regular_file(ignored) && is_data(entry->path()))
      files.push_back(entry->path());
  }
  if (code) throw DataError("cannot read folder: " + code.message(), folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string fix_for(const SplitFiles& found, const config::DataSource& source) {
  const std::string advice = advice_on_split(source.split);
  if (!advice.empty()) return advice;
  if (found.names.empty()) return "no file's name names one: leave `split` out, or name a file";
  const std::string there = join(found.names, ", ");
  if (!source.split.empty()) return "it has " + there;
  // Names such as test_prompts.jsonl need not mean splits; but then which are meant?
  return fmt::format("its files name {}; say which as {{path: …, split: …}}, or name files", there);
}

std::vector<fs::path> files_of_folder(const fs::path& folder, const config::DataSource& source,
                                      SplitRole role) {
  const std::vector<fs::path> all = data_files_in(folder);
  if (all.empty()) {
    throw DataError(
        "the folder holds no data files", folder.string(),
        "known: .jsonl, .json, .csv, .tsv, .parquet and .arrow; .gz and .zst of the texts");
  }
  std::vector<fs::path> inside;
  for (const fs::path& file : all) inside.push_back(file.lexically_relative(folder));
  const SplitFiles found = files_of_split(inside, source.split, default_splits(role));
  if (!found.missing.empty()) {
    throw DataError(fmt::format("the folder has no split `{}`", found.missing), folder.string(),
                    fix_for(found, source));
  }
  std::vector<fs::path> files;
  for (const fs::path& file : found.files) files.push_back(folder / file);
  return files;
}

/// A file is taken whole; what a `split` would leave of it nobody would notice.
void refuse_split(const config::DataSource& source) {
  if (source.split.empty()) return;
  const std::string advice = advice_on_split(source.split);
  throw DataError(fmt::format("`split: {}` does nothing here: splits are those of folders and of "
                              "data sets on the hub, and this is {}",
                              source.split, is_glob(source.path) ? "a pattern" : "one file"),
                  source.path,
                  advice.empty() ? "leave `split` out, or give the folder as path" : advice);
}

}  // namespace

std::vector<fs::path> source_files(const config::DataSource& source, SplitRole role) {
  const fs::path path = source.path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return files_of_folder(path, source, role);
  refuse_split(source);
  if (is_glob(path)) {
    std::vector<fs::path> files = expand_glob(path);
    std::erase_if(files, [](const fs::path& file) { return fs::is_directory(file); });
    if (files.empty()) throw DataError("no file matches", source.path);
    return files;
  }
  return {path};
}

std::vector<std::string> files_in_both(const config::DataConfig& data) {
  std::set<fs::path> train;
  for (const config::DataSource& source : data.train) {
    for (const fs::path& file : source_files(source, SplitRole::kTrain)) train.insert(file);
  }
  std::vector<std::string> both;
  for (const config::DataSource& source : data.val) {
    for (const fs::path& file : source_files(source, SplitRole::kValidation)) {
      if (train.contains(file)) both.push_back(shown_name(file.string()));
    }
  }
  return both;
}

std::string shown_name(const std::string& path) {
  constexpr std::string_view kRepo = "/datasets--", kSnapshots = "/snapshots/";
  const size_t repo = path.rfind(kRepo);
  const size_t snapshots = repo == std::string::npos ? repo : path.find(kSnapshots, repo);
  if (snapshots == std::string::npos) return path;
  std::string name = path.substr(repo + kRepo.size(), snapshots - repo - kRepo.size());
  if (const size_t owner = name.find("--"); owner != std::string::npos) name.replace(owner, 2, "/");
  const std::string rest = path.substr(snapshots + kSnapshots.size());
  const size_t slash = rest.find('/');
  constexpr size_t kShort = 7;
  const std::string commit = rest.substr(0, std::min(slash, kShort));
  return fmt::format("{} (commit {}){}", name, commit,
                     slash == std::string::npos ? "" : ": " + rest.substr(slash + 1));
}

}  // namespace sftrun::data
