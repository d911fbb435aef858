#include "sftrun/core/data_splits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "sftrun/core/strings.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

const std::map<std::string, std::vector<std::string>>& words_of_splits() {
  static const std::map<std::string, std::vector<std::string>> words = {
      {"train", {"train", "training"}},
      {"validation", {"validation", "valid", "val", "dev"}},
      {"test", {"test", "testing", "eval", "evaluation"}}};
  return words;
}

std::optional<std::string> split_named(const std::string& word) {
  for (const auto& [split, words] : words_of_splits()) {
    if (std::find(words.begin(), words.end(), word) != words.end()) return split;
  }
  return std::nullopt;
}

/// The words of a file or folder name: "train-00000-of-00002.parquet", "test1.csv".
std::vector<std::string> words_of(const std::string& name) {
  constexpr std::string_view kSeparators = "-_. 0123456789";
  std::vector<std::string> words(1);
  for (const char c : ascii_lower(name)) {
    if (kSeparators.find(c) != std::string_view::npos)
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

bool begins_with_split(const std::string& name, const std::string& split) {
  if (split.empty() || !name.starts_with(split)) return false;
  return name.size() == split.size() ||
         std::string_view("-._").find(name[split.size()]) != std::string_view::npos;
}

/// The split named by a word of `name`.
std::optional<std::string> split_in_name(const std::string& name) {
  for (const std::string& word : words_of(name)) {
    if (auto split = split_named(word)) return split;
  }
  return std::nullopt;
}

/// Checks the file's name first, then the folders that contain it, the nearest first.
std::string split_of(fs::path file, const std::string& asked) {
  for (; !file.empty(); file = file.parent_path()) {
    const std::string name = file.filename().string();
    if (begins_with_split(name, asked)) return asked;
    if (const auto split = split_in_name(name)) return *split;
    if (file == file.parent_path()) break;
  }
  return "";
}

/// The whole name of the split of a shard: `train_sft` of train_sft-00000-of-00001.parquet; empty: the
/// file is not named as a shard.
std::string split_of_shard(const fs::path& file) {
  const std::string name = file.filename().string();
  const size_t of = name.find("-of-"), dash = of == 0 ? name.npos : name.rfind('-', of - 1);
  if (of == name.npos || dash == name.npos || dash + 1 == of) return {};
  const bool has_number =
      std::string_view(name).substr(dash + 1, of - dash - 1).find_first_not_of("0123456789") ==
      std::string_view::npos;
  return has_number ? name.substr(0, dash) : std::string();
}

/// Of the files of a split those that are meant: shards of other splits whose names only have its
/// word (train_sft, train_prefs) are no part of it. Where all are such shards, they must be of one.
void choose_among_alike(SplitFiles& found, const std::string& split) {
  const auto is_other = [&](const fs::path& file) {
    const std::string name = split_of_shard(file);
    const bool begins_alike = split_named(words_of(name).front()) == split;
    return begins_alike && !split_named(ascii_lower(name)) && name != split;
  };
  std::set<std::string> others;
  for (const fs::path& file : found.files)
    if (is_other(file)) others.insert(split_of_shard(file));
  const bool has_own = !std::all_of(found.files.begin(), found.files.end(), is_other);
  if (has_own) {
    std::erase_if(found.files, is_other);
  } else if (others.size() > 1) {
    found.alike = {others.begin(), others.end()};
    found.files.clear();
  }
}

}  // namespace

std::vector<std::string> default_splits(SplitRole role) {
  if (role == SplitRole::kTrain) return {"train"};
  return {"validation", "test"};
}

SplitFiles files_of_split(const std::vector<fs::path>& files, const std::string& asked,
                          const std::vector<std::string>& defaults) {
  std::map<std::string, std::vector<fs::path>> by_split;
  for (const fs::path& file : files) by_split[split_of(file, asked)].push_back(file);
  SplitFiles found;
  for (const auto& [split, members] : by_split) {
    if (!split.empty()) found.names.push_back(split);
  }
  std::vector<std::string> wanted = defaults;
  if (!asked.empty()) {
    wanted = {by_split.contains(asked) ? asked : split_named(ascii_lower(asked)).value_or(asked)};
  }
  const bool whole =
      wanted.empty() || (found.names.empty() && (asked.empty() || wanted[0] == "train"));
  if (whole) {
    found.files = files;
    return found;
  }
  for (const std::string& split : wanted) {
    if (!by_split.contains(split)) continue;
    found.files = by_split[split];
    choose_among_alike(found, split);
    if (!found.alike.empty()) found.missing = split;
    return found;
  }
  found.missing = asked.empty() ? wanted[0] : asked;
  return found;
}

bool means_split(const std::string& name, const std::string& asked) {
  const auto told = split_in_name(name);
  return told && told == split_named(ascii_lower(asked));
}

bool names_split(const std::string& name) {
  return split_in_name(name).has_value();
}

std::string advice_on_split(const std::string& asked) {
  if (asked.find('+') != std::string::npos)
    return "list the data set once for each split: [{path: …, split: train}, {path: …, split: …}]";
  const size_t bracket = asked.find('[');
  if (bracket == std::string::npos) return {};
  const size_t colon = asked.find(':', bracket), end = asked.find(']', bracket);
  const bool is_beginning = colon == bracket + 1 && end != std::string::npos;
  const std::string count = is_beginning ? asked.substr(colon + 1, end - colon - 1) : "";
  const bool is_number = !count.empty() && count.find_first_not_of("0123456789") == count.npos;
  return is_number
             ? fmt::format("for the first {} {} write max_samples: {}", count,
                           count == "1" ? "record" : "records", count)
             : "slices are not supported; max_samples: N takes the first N records, data.val_split "
               "splits some off";
}

}  // namespace sftrun
