#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Names of repositories on a hub, as people write them.
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
  std::string revision;  ///< branch, tag or commit; empty: none was named, which means main
  std::string path;      ///< a file or folder in the repository; empty: all of it

  std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
  /// The shortest form that parses to the same: owner/name@v1, hf://owner/name/model.gguf.
  std::string text() const;
  bool operator==(const RepoName&) const = default;
};

/// nullopt if `text` is no hub's name but could be a path ("model", "../a/b", "a/b/c", "x/y.gguf").
/// Whether a local file of that name exists is for the caller to look at first.
/// @throws ConfigError for what begins with hf:// and is malformed, or names a data set
std::optional<RepoName> parse_model_name(std::string_view text);
/// The same for data: hf://datasets/owner/name…, and plain owner/name[@revision], as load_dataset
/// takes it.
/// @throws ConfigError for what begins with hf:// and is malformed, or names a model
std::optional<RepoName> parse_dataset_name(std::string_view text);

/// Whether a text can only be meant as a name on the hub: hf://… and https://huggingface.co/….
bool begins_as_hub_name(std::string_view text);

/// The name with `revision` (model.revision in YAML) put in. Empty leaves it as it is.
/// @throws ConfigError if both name one and they differ, or if it can be no revision
RepoName with_revision(RepoName name, const std::string& revision);

/// Whether git could have a branch, tag or commit of this name; nothing else becomes part of a URL
/// or of a file's name.
bool is_revision(std::string_view text);
/// 40 hexadecimal digits: a revision that never changes.
bool is_commit(std::string_view text);
/// Whether a path is safe below a folder: relative, no empty part, no "." or "..", no control
/// character.
bool is_relative_path(std::string_view path);

}  // namespace sftrun::hub
