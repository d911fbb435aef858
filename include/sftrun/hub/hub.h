#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/hub/repo_name.h"
#include "sftrun/hub/settings.h"

/// Files of a hub on this machine: looked up in huggingface_hub's cache, downloaded into it.
///
/// Safe to call from several processes at once: each file is downloaded by one of them, under the
/// lock that huggingface_hub takes. What was downloaded has the size and the checksum that the hub
/// named; what was cut off is gone on with by the next call.
namespace sftrun::hub {

enum class Lookup {
  kCacheFirst,  ///< a complete copy in the cache is used without asking the hub
  kAskHub,      ///< the hub says what the revision is now; the cache only where it cannot
};

/// What of a model is needed.
enum class ModelParts {
  kAll,   ///< configuration, tokenizer, weights; or the adapter; or the .gguf file
  kText,  ///< configuration and tokenizer; the .gguf file where there is nothing else
};

struct Options {
  Lookup lookup = Lookup::kCacheFirst;
  bool quiet = false;  ///< no progress
  /// Asked often, from several threads; true ends a download soon. Empty: never.
  std::function<bool()> should_stop = {};
};

/// A repository's files on this machine.
struct Snapshot {
  RepoName name;
  std::string commit;
  std::filesystem::path directory;  ///< snapshots/<commit> in the cache
  /// What a loader opens: the directory, a folder in it, or the one .gguf or data file.
  std::filesystem::path path;
  std::vector<std::string> files;  ///< what was asked for, below `directory`, sorted
  uint64_t downloaded_bytes = 0;   ///< 0: all of it was in the cache
};

/// A model's files: config.json and its like, the tokenizer's, *.safetensors; or an adapter's; or
/// one .gguf file. Neither pickled weights nor other formats' copies.
/// @throws DataError  no such model, revision or file; a gated one; only weights of a kind that is
///                    not read; several .gguf files and none named
/// @throws CommError  the hub cannot be reached or answers nonsense, and the cache has no copy
/// @throws DeviceError  the disk is full or may not be written
/// @throws Error (130)  stopped by `should_stop`
Snapshot get_model(const RepoName& name, ModelParts parts, const Settings& settings,
                   const Options& options = {});

/// Which files of a data set.
struct DatasetRequest {
  /// One of those that README.md declares (core/dataset_card.h), which is fetched to know. Empty:
  /// the default one; every file where neither a split nor `defaults` are asked for.
  std::string subset;
  /// "train", "validation", "test", or another beginning of names: core/data_splits.h. Empty: the
  /// first of `defaults` that is there; with none, or where no name tells a split, every file.
  std::string split;
  std::vector<std::string> defaults;
  /// Which files are data where the name does not name one.
  std::vector<std::string> extensions = {".jsonl", ".json", ".parquet", ".csv"};
};

/// A data set's files; README.md is fetched beside them. `name.path` may be a file, a folder, or a
/// pattern with * and ?, as of a shell (train/*.jsonl).
/// @throws as get_model; DataError if no file is asked for
Snapshot get_dataset(const RepoName& name, const DatasetRequest& request, const Settings& settings,
                     const Options& options = {});

/// The files behind a name in `data.train` or `data.val`, in the order of their names:
///   a path that exists                            that path alone
///   hf://datasets/owner/name[@rev][/path]         from the cache, else downloaded
///   owner/name[@rev]                              the same
///   anything else                                 {}: for the caller to say what is wrong
/// Call it once, in the process that the user started, before workers start.
/// @throws as get_dataset
std::vector<std::filesystem::path> dataset_files(const std::string& name,
                                                 const DatasetRequest& request,
                                                 const Settings& settings,
                                                 const Options& options = {});

}  // namespace sftrun::hub
