#include "selection.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <string_view>

#include "sftrun/core/data_splits.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"

namespace sftrun::hub {
namespace {

using Files = std::vector<RemoteFile>;

constexpr auto kTextFiles = std::to_array<std::string_view>(
    {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
     "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
     "tekken.json", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
     "processor_config.json", "video_preprocessor_config.json", "adapter_config.json",
     "sftrun_base.json", "sftrun_chat.json", "sftrun_images.json"});
constexpr auto kTextEndings = std::to_array<std::string_view>({".model", ".tiktoken"});
constexpr auto kPickledEndings = std::to_array<std::string_view>({".bin", ".pt", ".pth", ".ckpt"});
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kAdapter = "adapter_model.safetensors";

template <class Range>
bool ends_with_any(std::string_view text, const Range& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return text.ends_with(ending); });
}

bool is_text_file(std::string_view name) {
  return std::find(kTextFiles.begin(), kTextFiles.end(), name) != kTextFiles.end() ||
         ends_with_any(name, kTextEndings);
}

template <class Predicate>
Files filtered(const Files& files, Predicate&& wanted) {
  Files chosen;
  for (const RemoteFile& file : files) {
    if (wanted(file.path)) chosen.push_back(file);
  }
  return chosen;
}

Files with_ending(const Files& files, std::string_view ending) {
  return filtered(files, [&](std::string_view path) { return path.ends_with(ending); });
}
bool holds(const Files& files, std::string_view name) {
  return std::any_of(files.begin(), files.end(),
                     [&](const RemoteFile& file) { return file.path == name; });
}

/// The files directly in a folder, with names relative to it. Subfolders contain copies in other
/// formats (onnx, original) or checkpoints.
Files in_folder(const Files& files, const std::string& folder) {
  const std::string prefix = folder.empty() ? "" : folder + "/";
  Files inside;
  for (RemoteFile file : files) {
    if (!file.path.starts_with(prefix)) continue;
    file.path.erase(0, prefix.size());
    if (file.path.find('/') == std::string::npos) inside.push_back(std::move(file));
  }
  return inside;
}

/// One file, or all shards; no second copy of the weights under another name (consolidated, fp16).
Files safetensors(const Files& files) {
  if (holds(files, kSingle))
    return filtered(files, [](const auto& path) { return path == kSingle; });
  Files shards =
      filtered(files, [](const std::string& path) { return shard_of(path).has_value(); });
  if (!shards.empty()) return shards;
  if (!holds(files, kIndex)) return {};
  return filtered(files, [](std::string_view path) {
    return path.ends_with(".safetensors") && !path.starts_with("consolidated") && path != kAdapter;
  });
}

std::string listed(const Files& files) {
  constexpr size_t kShown = 12;
  std::vector<std::string> names;
  for (const RemoteFile& file : files) {
    if (names.size() == kShown) break;
    names.push_back(file.path);
  }
  return join(names, ", ") +
         (files.size() > kShown ? fmt::format(" and {} more", files.size() - kShown) : "");
}

std::string named(RepoName name, const std::string& path) {
  name.path = name.path.empty() ? path : name.path + "/" + path;
  return name.text();
}

Selection nothing(std::string message, std::string fix) {
  return {.none = NoChoice{std::move(message), std::move(fix)}};
}

/// For a repository of .gguf files: the only one.
Selection select_gguf(const RepoName& name, const Files& files) {
  const Files models = filtered(files, [](std::string_view path) {
    // Mmproj: the image encoder of a model
    return path.ends_with(".gguf") && !path.starts_with("mmproj");
  });
  if (models.size() == 1) return {.files = models, .opened = models.front().path};
  return nothing(
      fmt::format("{} has {} .gguf files: {}", name.text(), models.size(), listed(models)),
      "name one of them: " + named(name, models.empty() ? "" : models.front().path));
}

Selection no_weights(const RepoName& name, const Files& files) {
  const Files pickled =
      filtered(files, [](std::string_view path) { return ends_with_any(path, kPickledEndings); });
  if (pickled.empty()) {
    return nothing(
        fmt::format("{} has no weights: neither safetensors nor a .gguf file", name.text()),
        files.empty() ? "check the name" : "its files are: " + listed(files));
  }
  return nothing(
      fmt::format("{} has only pickled weights, which are not supported: {}", name.text(),
                  listed(pickled)),
      "look for a revision with safetensors (the hub's bot offers one as refs/pr/N), or convert "
      "them: AutoModelForCausalLM.from_pretrained(NAME).save_pretrained(DIR)");
}

Selection select_from_folder(const RepoName& name, const Files& files, ModelParts parts) {
  Files text = filtered(files, [](std::string_view path) { return is_text_file(path); });
  const Files weights = safetensors(files);
  const bool is_adapter = holds(files, "adapter_config.json") && holds(files, kAdapter);
  const bool has_tokenizer = std::any_of(text.begin(), text.end(), [](const RemoteFile& file) {
    return file.path.starts_with("tokenizer.") || file.path.starts_with("tekken") ||
           file.path == "vocab.json";
  });
  if (parts == ModelParts::kText && has_tokenizer) return {.files = text};
  if (weights.empty() && !is_adapter && !with_ending(files, ".gguf").empty())
    return select_gguf(name, files);
  if (weights.empty() && !is_adapter) return no_weights(name, files);
  const auto add = [&](const Files& more) { text.insert(text.end(), more.begin(), more.end()); };
  if (!holds(files, kSingle)) add(filtered(files, [](const auto& path) { return path == kIndex; }));
  add(weights);
  if (is_adapter) add(filtered(files, [](const auto& path) { return path == kAdapter; }));
  return {.files = text};
}

/// Makes paths relative to the repository again.
Selection below(const std::string& folder, Selection selection) {
  if (folder.empty()) return selection;
  for (RemoteFile& file : selection.files) file.path = folder + "/" + file.path;
  selection.opened = selection.opened.empty() ? folder : folder + "/" + selection.opened;
  return selection;
}

Selection no_such_path(const RepoName& name, const Files& files) {
  std::vector<std::string> paths;
  for (const RemoteFile& file : files) paths.push_back(file.path);
  const std::string near = nearest(name.path, paths);
  RepoName whole = name;
  whole.path.clear();
  return nothing(fmt::format("{} has no file or folder {}", whole.text(), name.path),
                 near.empty() ? "its files are: " + listed(files)
                              : fmt::format("did you mean {}?", named(whole, near)));
}

using Paths = std::vector<std::filesystem::path>;

Paths paths_of(const Files& files) {
  Paths paths;
  for (const RemoteFile& file : files) paths.emplace_back(file.path);
  return paths;
}

Files among(const Files& files, const Paths& paths) {
  const std::set<std::string> wanted(paths.begin(), paths.end());
  return filtered(files, [&](const std::string& path) { return wanted.contains(path); });
}

/// The files below a folder, with names relative to it.
Files below_folder(const Files& files, const std::string& folder) {
  if (folder.empty()) return files;
  Files inside;
  for (RemoteFile file : files) {
    if (!file.path.starts_with(folder + "/")) continue;
    file.path.erase(0, folder.size() + 1);
    inside.push_back(std::move(file));
  }
  return inside;
}

/// The files of the requested subset, selected as in a local folder.
Selection select_subset(const RepoName& name, const Files& files, const DatasetRequest& request,
                        const DatasetCard& card) {
  const Files inside = below_folder(files, name.path);
  const SubsetFiles chosen =
      files_of_subset(card, paths_of(inside), {request.subset, request.split, request.defaults},
                      [&](const std::filesystem::path& file) {
                        return ends_with_any(file.string(), request.extensions);
                      });
  if (!chosen.message.empty()) return nothing(name.text() + " " + chosen.message, chosen.fix);
  return below(name.path, {.files = among(inside, chosen.files)});
}

Selection no_subsets(const RepoName& name, const std::string& subset, const Files& files) {
  RepoName folder = name;
  folder.path = folder.path.empty() ? subset : folder.path + "/" + subset;
  const bool is_folder = !below_folder(files, folder.path).empty();
  return nothing(fmt::format("{} has no subset `{}`: its README.md declares none (`configs`)",
                             name.text(), subset),
                 is_folder
                     ? fmt::format("for the folder of that name write path: {}", folder.text())
                     : "remove `name`; path may be a folder or a pattern in the data set");
}

Selection no_such_split(const RepoName& name, const Files& data, const SplitFiles& found,
                        const DatasetRequest& request) {
  RepoName plain = name;
  plain.path.clear();
  const std::string advice = advice_on_split(request.split);
  const std::string file = "name a file: " + named(plain, data.front().path);
  const std::string splits =
      found.names.empty() ? "no file name contains a split" : "it has " + join(found.names, ", ");
  return nothing(
      fmt::format("{} has no split `{}`", name.text(), found.missing),
      advice.empty() ? fmt::format("{}; {}; there are: {}", splits, file, listed(data)) : advice);
}

}  // namespace

bool is_weights(const std::string& path) {
  return path.ends_with(".safetensors") || path.ends_with(".gguf");
}

std::optional<Shard> shard_of(const std::string& path) {
  Shard shard;
  int used = 0;
  const int got = std::sscanf(path.c_str(), "model-%5d-of-%5d.safetensors%n", &shard.number,
                              &shard.count, &used);
  if (got != 2 || used != static_cast<int>(path.size())) return std::nullopt;
  return shard;
}

Selection select_model(const RepoName& name, const std::vector<RemoteFile>& files,
                       ModelParts parts) {
  if (name.path.empty()) return select_from_folder(name, in_folder(files, ""), parts);
  if (holds(files, name.path)) {
    return {.files = filtered(files, [&](const auto& path) { return path == name.path; }),
            .opened = name.path};
  }
  const Files inside = in_folder(files, name.path);
  if (inside.empty()) return no_such_path(name, files);
  return below(name.path, select_from_folder(name, inside, parts));
}

std::optional<RemoteFile> dataset_card(const RepoName& name, const std::vector<RemoteFile>& files) {
  const std::string path = name.path.empty() ? kDatasetCard : name.path + "/" + kDatasetCard;
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const RemoteFile& file) { return file.path == path; });
  return found == files.end() ? std::nullopt : std::optional(*found);
}

Selection select_dataset(const RepoName& name, const std::vector<RemoteFile>& files,
                         const DatasetRequest& request, const DatasetCard& card) {
  if (holds(files, name.path)) {
    return {.files = filtered(files, [&](const auto& path) { return path == name.path; }),
            .opened = name.path};
  }
  const bool is_whole = request.subset.empty() && request.split.empty() && request.defaults.empty();
  if (!card.subsets.empty() && !is_whole) return select_subset(name, files, request, card);
  const bool is_pattern = holds_wildcards(name.path);
  Files inside = filtered(files, [&](const std::string& path) {
    if (is_pattern)
      return ::fnmatch(name.path.c_str(), path.c_str(), FNM_PERIOD | FNM_PATHNAME) == 0;
    return name.path.empty() || path.starts_with(name.path + "/");
  });
  if (inside.empty() && !name.path.empty()) return no_such_path(name, files);
  Files data = is_pattern ? inside : filtered(inside, [&](std::string_view path) {
    return ends_with_any(path, request.extensions);
  });
  std::sort(data.begin(), data.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  if (data.empty()) {
    return nothing(
        fmt::format("{} has no data files ({})", name.text(), join(request.extensions, ", ")),
        "its files are: " + listed(inside));
  }
  if (is_pattern) return {.files = data};
  if (!request.subset.empty() && request.subset != "default")
    return no_subsets(name, request.subset, files);
  const SplitFiles found = files_of_split(paths_of(data), request.split, request.defaults);
  if (!found.alike.empty()) {
    return nothing(fmt::format("{} has several splits that may be `{}`: {}", name.text(),
                               found.missing, join(found.alike, ", ")),
                   fmt::format("say which as {{path: …, split: {}}}", found.alike.front()));
  }
  if (!found.missing.empty()) return no_such_split(name, data, found, request);
  return {.files = among(data, found.files), .opened = name.path};
}

}  // namespace sftrun::hub
