#include "source_files.h"

#include <algorithm>
#include <set>

#include "sftrun/core/dataset_card.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/data_extensions.h"
#include "sftrun/data/dataset.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

bool is_data(const fs::path& file) {
  const std::string name = file.filename().string();
  if (describes_data(name) || name == "state.json") return false;
  if (name.starts_with("cache-") && name.ends_with(".arrow")) return false;  // of datasets' map()
  return has_data_extension(file);
}

std::vector<fs::path> files_in(const fs::path& folder, bool with_hidden) {
  std::vector<fs::path> files;
  std::error_code code;
  fs::recursive_directory_iterator entry(folder, code);
  for (; !code && entry != fs::recursive_directory_iterator(); entry.increment(code)) {
    const bool hidden = entry->path().filename().string().starts_with('.') && !with_hidden;
    std::error_code ignored;
    if (hidden && entry->is_directory(ignored)) entry.disable_recursion_pending();
    const bool leads_nowhere = !entry->exists(ignored);  // files_of_folder reports it
    if (!hidden && (leads_nowhere || entry->is_regular_file(ignored)))
      files.push_back(entry->path().lexically_relative(folder));
  }
  if (code) throw DataError("cannot read folder: " + code.message(), folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string fix_for(const SplitFiles& found, const config::DataSource& source) {
  const std::string advice = advice_on_split(source.split);
  if (!advice.empty()) return advice;
  if (found.names.empty()) return "no file name contains a split: remove `split`, or name a file";
  const std::string there = join(found.names, ", ");
  if (!source.split.empty()) return "it has " + there;
  // Names such as test_prompts.jsonl need not be splits, but the choice would be ambiguous.
  return fmt::format(
      "its files have the splits {}; choose one with {{path: …, split: …}}, or name files", there);
}

DatasetCard card_of(const fs::path& folder) {
  const fs::path file = folder / kDatasetCard;
  if (!has_optional_file(file) || !is_plain_file(file)) return {};
  return parse_dataset_card(read_utf8_file(file), file.string());
}

/// `datasets` calls what has no subsets `default`.
void refuse_name_without_subsets(const config::DataSource& source) {
  if (source.name.empty() || source.name == "default") return;
  const fs::path folder = fs::path(source.path) / source.name;
  throw DataError(
      fmt::format("`name: {}` has no effect: subsets are declared in `configs` of a data "
                  "set's README.md, and there are none",
                  source.name),
      source.path,
      is_folder(folder) ? fmt::format("for the folder of that name write path: {}", folder.string())
                        : "remove `name`; path may be a folder or a pattern in the data set");
}

std::vector<fs::path> files_by_card(const fs::path& folder, const DatasetCard& card,
                                    const config::DataSource& source, SplitRole role) {
  // A pattern may name hidden files.
  const SubsetFiles chosen =
      files_of_subset(card, files_in(folder, /*with_hidden=*/true),
                      {source.name, source.split, default_splits(role)}, is_data);
  if (!chosen.message.empty()) {
    throw DataError(fmt::format("the data set {}", chosen.message),
                    shown_name((folder / kDatasetCard).string()), chosen.fix);
  }
  return chosen.files;
}

std::vector<fs::path> files_by_names(const fs::path& folder, const config::DataSource& source,
                                     SplitRole role) {
  std::vector<fs::path> all = files_in(folder, /*with_hidden=*/false);
  std::erase_if(all, [](const fs::path& file) { return !is_data(file); });
  if (all.empty()) {
    throw DataError(
        "the folder has no data files", folder.string(),
        "known: .jsonl, .json, .csv, .tsv, .parquet and .arrow; text files also as .gz and .zst");
  }
  const SplitFiles found = files_of_split(all, source.split, default_splits(role));
  if (!found.alike.empty()) {
    throw DataError(fmt::format("the folder has several splits that may be `{}`: {}", found.missing,
                                join(found.alike, ", ")),
                    folder.string(),
                    fmt::format("say which as {{path: …, split: {}}}", found.alike.front()));
  }
  if (!found.missing.empty()) {
    throw DataError(fmt::format("the folder has no split `{}`", found.missing), folder.string(),
                    fix_for(found, source));
  }
  return found.files;
}

std::vector<fs::path> files_of_folder(const fs::path& folder, const config::DataSource& source,
                                      SplitRole role) {
  const DatasetCard card = card_of(folder);
  if (card.subsets.empty()) refuse_name_without_subsets(source);
  std::vector<fs::path> files = card.subsets.empty() ? files_by_names(folder, source, role)
                                                     : files_by_card(folder, card, source, role);
  for (fs::path& file : files) {
    file = folder / file;
    has_optional_file(file);  // its error for a broken link
  }
  return files;
}

/// A file is used completely, so `split` or `name` would have no effect without notice.
void refuse_part(const config::DataSource& source, const char* key, const char* kind,
                 const std::string& value) {
  if (value.empty()) return;
  const std::string advice = advice_on_split(value);
  throw DataError(
      fmt::format("`{}: {}` has no effect: {} exist only for folders and data "
                  "sets on the hub, and this is {}",
                  key, value, kind, is_glob(source.path) ? "a pattern" : "one file"),
      source.path,
      advice.empty() ? fmt::format("remove `{}`, or use the folder as path", key) : advice);
}

}  // namespace

std::vector<fs::path> source_files(const config::DataSource& source, SplitRole role) {
  const fs::path path = source.path;
  if (is_folder(path)) return files_of_folder(path, source, role);
  refuse_part(source, "split", "splits", source.split);
  refuse_part(source, "name", "subsets", source.name);
  if (is_glob(path)) {
    std::vector<fs::path> files = expand_glob(path);
    std::erase_if(files, [](const fs::path& file) { return is_folder(file); });
    if (files.empty()) throw DataError("no file matches", source.path);
    return files;
  }
  return {path};
}

std::string subset_of(const config::DataSource& source) {
  if (!is_folder(source.path)) return {};
  const DatasetCard card = card_of(source.path);
  if (card.subsets.size() < 2) return {};
  return fmt::format(", subset `{}` of {}", choose_subset(card, source.name).subset,
                     card.subsets.size());
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
