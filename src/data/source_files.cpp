#include "source_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/split_words.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/data_extensions.h"

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

/// The split that a word names, as `datasets` reads names.
std::optional<std::string> split_named(const std::string& word) {
  for (const char* split : {"train", "validation", "test"}) {
    const std::vector<std::string> words = words_of_split(split);
    if (std::find(words.begin(), words.end(), word) != words.end()) return split;
  }
  return std::nullopt;
}

/// Words of a name between what separates them: "train-00000-of-00002.parquet".
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : ascii_lower(name)) {
    if (c == '-' || c == '_' || c == '.' || c == ' ')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

/// Of the file's name first, then of the folders it lies in, the nearest first.
std::string split_of(const fs::path& file, const fs::path& folder, const std::string& asked) {
  fs::path relative = fs::relative(file, folder);
  while (!relative.empty()) {
    const std::string name = relative.filename().string();
    if (!asked.empty() && (name == asked || name.starts_with(asked + "-") ||
                           name.starts_with(asked + ".") || name.starts_with(asked + "_")))
      return asked;
    for (const std::string& word : words_of(name)) {
      if (const auto split = split_named(word)) return *split;
    }
    relative = relative.parent_path();
  }
  return "";
}

std::string listed(const std::set<std::string>& names) {
  return join(std::vector<std::string>(names.begin(), names.end()), ", ");
}

std::vector<fs::path> files_of_split(const fs::path& folder, const config::DataSource& source,
                                     SplitRole role) {
  const std::vector<fs::path> all = data_files_in(folder);
  if (all.empty()) {
    throw DataError(
        "the folder holds no data files", folder.string(),
        "known: .jsonl, .json, .csv, .tsv, .parquet and .arrow; .gz and .zst of the texts");
  }
  std::map<std::string, std::vector<fs::path>> by_split;
  std::set<std::string> named;
  for (const fs::path& file : all) {
    const std::string split = split_of(file, folder, source.split);
    by_split[split].push_back(file);
    if (!split.empty()) named.insert(split);
  }
  if (!source.split.empty()) {
    // "val" finds validation-00000-of-00001.parquet.
    const std::string split = by_split.contains(source.split)
                                  ? source.split
                                  : split_named(ascii_lower(source.split)).value_or(source.split);
    if (by_split.contains(split)) return by_split[split];
    throw DataError(fmt::format("the folder has no split `{}`", source.split), folder.string(),
                    named.empty() ? "no file's name names one: leave `split` out, or name a file"
                                  : "it has " + listed(named));
  }
  if (named.empty()) return all;
  const std::vector<std::string> wanted = role == SplitRole::kTrain
                                              ? std::vector<std::string>{"train"}
                                              : std::vector<std::string>{"validation", "test"};
  for (const std::string& split : wanted) {
    if (by_split.contains(split)) return by_split[split];
  }
  // Names such as test_prompts.jsonl need not mean splits; but then which are meant?
  throw DataError(
      fmt::format("the folder has no split `{}`", wanted[0]), folder.string(),
      fmt::format("its files name {}; say which as {{path: …, split: …}}, or name files",
                  listed(named)));
}

}  // namespace

std::vector<fs::path> source_files(const config::DataSource& source, SplitRole role) {
  const fs::path path = source.path;
  if (is_glob(path)) {
    std::vector<fs::path> files = expand_glob(path);
    std::erase_if(files, [](const fs::path& file) { return fs::is_directory(file); });
    if (files.empty()) throw DataError("no file matches", source.path);
    return files;
  }
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return files_of_split(path, source, role);
  return {path};
}

}  // namespace sftrun::data
