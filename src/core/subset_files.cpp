#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "sftrun/core/data_splits.h"
#include "sftrun/core/dataset_card.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"

/// Selects the files of a data set's subset.
namespace sftrun {
namespace fs = std::filesystem;
namespace {

using Names = std::vector<std::string>;
using Files = std::vector<fs::path>;

std::string listed(const Names& names) {
  constexpr size_t kShown = 12;
  if (names.size() <= kShown) return join(names, ", ");
  return fmt::format("{} and {} more", join(Names(names.begin(), names.begin() + kShown), ", "),
                     names.size() - kShown);
}

template <class Items>
Names names_of(const Items& items) {
  Names names;
  for (const auto& item : items) names.push_back(item.name);
  return names;
}

SubsetFiles nothing(std::string message, std::string fix) {
  return {.message = std::move(message), .fix = std::move(fix)};
}

const Subset& subset_named(const DatasetCard& card, const std::string& name) {
  return *std::find_if(card.subsets.begin(), card.subsets.end(),
                       [&](const Subset& subset) { return subset.name == name; });
}

// ---- Patterns, as in fsspec's glob

/// Matches one path component; only `!` negates a set, and there is no escape character.
bool component_matches(const std::string& pattern, const std::string& name) {
  std::string escaped;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool is_caret_of_set = pattern[i] == '^' && i > 0 && pattern[i - 1] == '[';
    if (pattern[i] == '\\' || is_caret_of_set) escaped += '\\';
    escaped += pattern[i];
  }
  return ::fnmatch(escaped.c_str(), name.c_str(), 0) == 0;
}

using Component = fs::path::const_iterator;

/// `**` matches any number of folders; at the end also the files below them.
bool components_match(Component pattern, Component pattern_end, Component path,
                      Component path_end) {
  if (pattern == pattern_end) return path == path_end;
  if (*pattern == "**") {
    if (std::next(pattern) == pattern_end) return path != path_end;
    for (;; ++path) {
      if (components_match(std::next(pattern), pattern_end, path, path_end)) return true;
      if (path == path_end) return false;
    }
  }
  return path != path_end && component_matches(pattern->string(), path->string()) &&
         components_match(std::next(pattern), pattern_end, std::next(path), path_end);
}

bool has_stars_in_name(const fs::path& pattern) {
  return std::any_of(pattern.begin(), pattern.end(), [](const fs::path& part) {
    return part != "**" && part.string().find("**") != std::string::npos;
  });
}

/// "." and ".." are resolved only before a pattern's first wildcard; after it they are names, which
/// no file has.
bool has_dots_behind_wildcard(const fs::path& pattern) {
  bool is_wild = false;
  for (const fs::path& part : pattern) {
    if (is_wild && (part == "." || part == "..")) return true;
    is_wild = is_wild || holds_wildcards(part.string());
  }
  return false;
}

/// Numbers of components that `datasets` matches only if a pattern names them: hidden ones, and
/// folders such as __pycache__.
std::array<int64_t, 2> num_special(const fs::path& path) {
  const auto folder = path.parent_path();
  return {std::count_if(path.begin(), path.end(),
                        [](const fs::path& part) { return part.string().starts_with('.'); }),
          std::count_if(folder.begin(), folder.end(),
                        [](const fs::path& part) { return part.string().starts_with("__"); })};
}

bool matches(const fs::path& pattern, const fs::path& file) {
  return components_match(pattern.begin(), pattern.end(), file.begin(), file.end()) &&
         num_special(pattern) == num_special(file);
}

using IsData = std::function<bool(const fs::path&)>;

/// The files that a pattern matches. A pattern with a file extension, or without wildcards, may
/// match files that are not data files.
Files matching(const fs::path& pattern, const Files& files, const IsData& is_data) {
  const std::string extension = pattern.extension().string();
  const bool names_kind = !extension.empty() && !holds_wildcards(extension);
  const bool is_name = !holds_wildcards(pattern.string());
  Files found;
  for (const fs::path& file : files) {
    if (!matches(pattern, file)) continue;
    const std::string name = file.filename().string();
    if (describes_data(name) && pattern.filename() != name) continue;
    if (is_name || names_kind || is_data(file)) found.push_back(file);
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return a.string() < b.string(); });
  return found;
}

// ---- Splits

/// The split with the requested name, else those whose name tells it: `train_sft` is a training
/// split.
Names splits_asked(const Names& splits, const std::string& asked) {
  if (std::find(splits.begin(), splits.end(), asked) != splits.end()) return {asked};
  Names found;
  for (const std::string& split : splits) {
    if (means_split(split, asked)) found.push_back(split);
  }
  return found;
}

/// The splits that a request selects: one, or all. Several if the request is ambiguous; empty if
/// there is no such split.
Names splits_meant(const Names& splits, const SubsetRequest& request) {
  if (!request.split.empty()) return splits_asked(splits, request.split);
  if (request.defaults.empty()) return splits;
  for (const std::string& wanted : request.defaults) {
    Names found = splits_asked(splits, wanted);
    if (!found.empty()) return found;
  }
  // Names that tell no split ("default", "sft") are training splits, as for files.
  Names others;
  for (const std::string& split : splits) {
    if (!names_split(split)) others.push_back(split);
  }
  return request.defaults.front() == "train" ? others : Names{};
}

SubsetFiles no_such_split(const Subset& subset, const Names& splits, const SubsetRequest& request) {
  const std::string wanted = request.split.empty() ? request.defaults.front() : request.split;
  std::string advice = advice_on_split(request.split);
  const auto is_for_training = [](const std::string& split) { return means_split(split, "train"); };
  if (!advice.empty()) {
    // A message was set above.
  } else if (wanted == "validation" && std::all_of(splits.begin(), splits.end(), is_for_training)) {
    advice = fmt::format("it has {}, to train on; data.val_split holds records out of data.train",
                         listed(splits));
  } else {
    advice = fmt::format("it has {}; say which as {{path: …, split: {}}}", listed(splits),
                         splits.front());
  }
  return nothing(fmt::format("has no split `{}` in its subset `{}`", wanted, subset.name), advice);
}

SubsetFiles several_such_splits(const Subset& subset, const Names& splits) {
  return nothing(
      fmt::format("has several such splits in its subset `{}`: {}", subset.name, listed(splits)),
      fmt::format("say which as {{path: …, split: {}}}", splits.front()));
}

SubsetFiles no_file_matches(const Subset& subset, const std::string& patterns) {
  return nothing(fmt::format("has no file that its subset `{}` names: {}", subset.name, patterns),
                 "its README.md names other files than there are: fetch the rest, or give the "
                 "files that are meant as path");
}

/// Files of the selected splits in the order of the patterns.
SubsetFiles by_patterns(const Subset& subset, const Files& files, const SubsetRequest& request,
                        const IsData& is_data) {
  const Names splits = names_of(subset.splits);
  const Names meant = splits_meant(splits, request);
  if (meant.empty()) return no_such_split(subset, splits, request);
  const bool takes_all = request.split.empty() && request.defaults.empty();
  if (meant.size() > 1 && !takes_all) {
    return several_such_splits(subset, meant);
  }
  SubsetFiles chosen{.subset = subset.name};
  for (const Subset::Split& split : subset.splits) {
    if (std::find(meant.begin(), meant.end(), split.name) == meant.end()) continue;
    for (const std::string& text : split.patterns) {
      const fs::path path = fs::path(subset.folder) / text, pattern = path.lexically_normal();
      if (has_stars_in_name(pattern)) {
        return nothing(fmt::format("names files of its subset `{}` by {}, and ** must stand alone "
                                   "between slashes",
                                   subset.name, text),
                       "write, for example, data/**/*.parquet in its README.md, or give the files "
                       "that are meant as path");
      }
      const Files found =
          has_dots_behind_wildcard(path) ? Files() : matching(pattern, files, is_data);
      if (found.empty() && !holds_wildcards(text)) return no_file_matches(subset, text);
      chosen.files.insert(chosen.files.end(), found.begin(), found.end());
    }
    if (chosen.files.empty()) return no_file_matches(subset, join(split.patterns, ", "));
  }
  return chosen;
}

/// Splits by the names of the files in the subset's folder.
SubsetFiles by_names(const Subset& subset, const Files& files, const SubsetRequest& request,
                     const IsData& is_data) {
  const fs::path folder = (fs::path(subset.folder) / "").lexically_normal();
  const fs::path pattern = folder == "." || folder == "./" ? "**" : folder / "**";
  Files inside;
  for (const fs::path& file : matching(pattern, files, is_data))
    inside.push_back(subset.folder.empty() ? file : file.lexically_relative(folder));
  if (inside.empty()) return no_file_matches(subset, pattern.string());
  const SplitFiles found = files_of_split(inside, request.split, request.defaults);
  if (!found.alike.empty()) return several_such_splits(subset, found.alike);
  if (!found.missing.empty()) {
    return no_such_split(subset, found.names.empty() ? Names{"train"} : found.names, request);
  }
  SubsetFiles chosen{.subset = subset.name};
  for (const fs::path& file : found.files)
    chosen.files.push_back(subset.folder.empty() ? file : (folder / file).lexically_normal());
  return chosen;
}

}  // namespace

bool describes_data(const std::string& file_name) {
  constexpr std::array kNoData = {"README.md", "config.json", "dataset_info.json",
                                  "dataset_infos.json", "dataset_dict.json"};
  return std::find(kNoData.begin(), kNoData.end(), file_name) != kNoData.end();
}

SubsetFiles choose_subset(const DatasetCard& card, const std::string& name) {
  const Names names = names_of(card.subsets);
  const auto has = [&](const std::string& wanted) {
    return std::find(names.begin(), names.end(), wanted) != names.end();
  };
  if (!name.empty()) {
    if (has(name)) return {.subset = name};
    const std::string near = nearest(name, names);
    return nothing(fmt::format("has no subset `{}`", name),
                   near.empty() ? fmt::format("it has {}", listed(names))
                                : fmt::format("did you mean `{}`? It has {}", near, listed(names)));
  }
  Names defaults;
  for (const Subset& subset : card.subsets) {
    if (subset.is_default || subset.name == "default" || names.size() == 1)
      defaults.push_back(subset.name);
  }
  if (defaults.empty() && has(card.described)) defaults = {card.described};
  if (defaults.size() == 1) return {.subset = defaults.front()};
  return nothing(
      defaults.empty()
          ? fmt::format("has several subsets, none of which is the default: {}", listed(names))
          : fmt::format("has several default subsets: {}", listed(defaults)),
      fmt::format("choose one: {{path: …, name: {}}}; to train on several, list the data "
                  "set once for each",
                  names.front()));
}

SubsetFiles files_of_subset(const DatasetCard& card, const Files& files,
                            const SubsetRequest& request, const IsData& is_data) {
  const SubsetFiles chosen = choose_subset(card, request.name);
  if (!chosen.message.empty()) return chosen;
  const Subset& subset = subset_named(card, chosen.subset);
  return subset.splits.empty() ? by_names(subset, files, request, is_data)
                               : by_patterns(subset, files, request, is_data);
}

}  // namespace sftrun
