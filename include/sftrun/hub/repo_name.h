#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Parses the names of repositories on a hub.
namespace sftrun::hub {

enum class RepoType { kModel, kDataset };

/// One repository, or one file or folder of it, at one revision.
///     owner/name[@revision]                          plain
///     hf://[models/]owner/name[@revision][/path]     a model
///     hf://datasets/owner/name[@revision][/path]     a data set
///     https://huggingface.co/[datasets/]owner/name[/tree|blob|resolve/revision[/path]]
///                                                    as copied from a browser
struct RepoName {
  RepoType type = RepoType::kModel;
  std::string id;        ///< "owner/name"
  std::string revision;  ///< branch, tag or commit; empty: main
  std::string path;      ///< a file or folder in the repository; empty: all of it

  std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
  /// The shortest form that parses to the same: owner/name@v1, hf://owner/name/model.gguf.
  std::string text() const;
  bool operator==(const RepoName&) const = default;
};

/// nullopt if `text` is not a repository name but may be a path ("model", "../a/b", "a/b/c",
/// "x/y.gguf"). The caller checks first whether a local file of that name exists.
/// @throws ConfigError if it begins with hf:// and is malformed or names a data set
std::optional<RepoName> parse_model_name(std::string_view text);
/// The same for data: hf://datasets/owner/name…, and owner/name[@revision] as load_dataset takes
/// it.
/// @throws ConfigError if it begins with hf:// and is malformed or names a model
std::optional<RepoName> parse_dataset_name(std::string_view text);

/// Whether a text can only be a name on the hub: hf://… or https://huggingface.co/….
bool begins_as_hub_name(std::string_view text);

/// The name with `revision` (model.revision in YAML) set. Empty: `name` unchanged.
/// @throws ConfigError if both set different revisions, or if `revision` is not a valid one
RepoName with_revision(RepoName name, const std::string& revision);

/// Whether git allows this name for a branch, tag or commit. Nothing else is used in a URL or a
/// file name.
bool is_revision(std::string_view text);
/// 40 hexadecimal digits, a revision that never changes.
bool is_commit(std::string_view text);
/// Whether a path stays below a folder: relative, no empty part, no "." or "..", no control
/// character.
bool is_relative_path(std::string_view path);

}  // namespace sftrun::hub
