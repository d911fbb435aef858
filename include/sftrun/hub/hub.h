#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/hub/repo_name.h"
#include "sftrun/hub/settings.h"

/// Downloads files from a hub into huggingface_hub's cache, and finds files that are there already.
///
/// Safe to call from several processes at once: one of them downloads a file, under the same lock
/// that huggingface_hub uses. A downloaded file has the size and checksum that the hub reports. The
/// next call resumes an interrupted download.
namespace sftrun::hub {

enum class Lookup {
  kCacheFirst,  ///< a complete copy in the cache is used; no request is sent
  kAskHub,  ///< asks the hub for the current revision; falls back to the cache if it cannot answer
};

/// Which parts of a model are needed.
enum class ModelParts {
  kAll,   ///< configuration, tokenizer, weights; or the adapter; or the .gguf file
  kText,  ///< configuration and tokenizer; the .gguf file if there is nothing else
};

struct Options {
  Lookup lookup = Lookup::kCacheFirst;
  bool quiet = false;  ///< no progress output
  /// Called often, from several threads; the download stops soon after it returns true. Empty:
  /// never.
  std::function<bool()> should_stop = {};
};

/// A repository's files on this machine.
struct Snapshot {
  RepoName name;
  std::string commit;
  std::filesystem::path directory;  ///< snapshots/<commit> in the cache
  /// What a loader opens: `directory`, a folder in it, or a single .gguf or data file.
  std::filesystem::path path;
  std::vector<std::string> files;  ///< the requested files, relative to `directory`, sorted
  uint64_t downloaded_bytes = 0;   ///< 0: all files were in the cache
};

/// Whether something of this revision was downloaded before.
bool is_in_cache(const RepoName& name, const Settings& settings);

/// A model's files: config.json and its like, the tokenizer's, *.safetensors; or an adapter's; or
/// one .gguf file. Neither pickled weights nor other formats' copies.
/// @throws DataError  no such model, revision or file; a gated one; only weights of a kind that is
///                    not read; several .gguf files and none named
/// @throws CommError  the hub cannot be reached or answers nonsense, and the cache has no copy
/// @throws DeviceError  the disk is full or may not be written
/// @throws Error (130)  stopped by `should_stop`
Snapshot get_model(const RepoName& name, ModelParts parts, const Settings& settings,
                   const Options& options = {});

/// Whether a weight file, of which only the first `known_bytes` are there, has its whole header.
/// Called from several threads.
using HasHeader = std::function<bool(const std::filesystem::path& file, uint64_t known_bytes)>;

/// A model's configuration and the headers of its weights, for a plan. A complete copy in the cache
/// is used. Else the headers are read by HTTP ranges into files in `folder`; their values are holes.
/// Without any weights that are read, or without an answer of the hub, what `kText` finds in the
/// cache.
/// @throws as get_model
Snapshot get_model_headers(const RepoName& name, const std::filesystem::path& folder,
                           const HasHeader& has_header, const Settings& settings,
                           const Options& options = {});

/// Which files of a data set.
struct DatasetRequest {
  /// A subset declared in README.md (core/dataset_card.h), which is downloaded for this. Empty: the
  /// default subset, or all files if neither `split` nor `defaults` is set.
  std::string subset;
  /// "train", "validation", "test", or another prefix of file names: core/data_splits.h. Empty: the
  /// first split in `defaults` that exists; all files if `defaults` is empty or no name tells a
  /// split.
  std::string split;
  std::vector<std::string> defaults;
  /// Extensions of data files, if the name does not name a file.
  std::vector<std::string> extensions = {".jsonl", ".json", ".parquet", ".csv"};
};

/// Gets the files of a data set, and its README.md. `name.path` may be a file, a folder, or a shell
/// pattern with * and ? (train/*.jsonl).
/// @throws as get_model; DataError if no file matches
Snapshot get_dataset(const RepoName& name, const DatasetRequest& request, const Settings& settings,
                     const Options& options = {});

}  // namespace sftrun::hub
