#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sftrun/data/example_store.h"

/// A cache of tokenized data sets: one folder per data set, named by a hash of everything it
/// depends on.
namespace sftrun::data {

class TokenCache {
 public:
  /// @param configured data.cache_dir: a folder, empty for the user's cache, or "none"
  /// @param num_threads threads that verify checksums
  explicit TokenCache(const std::string& configured, int num_threads = 1);

  /// Folder for the hashes of data files; empty: none.
  std::filesystem::path hashes() const;

  /// The examples of `key`. `write` writes them (with "key" in the header, and MediaStamps attached) if they are missing,
  /// damaged or of another key, or if files of images or features have changed since. If several processes call it, one writes and the others wait; files
  /// of killed processes are removed.
  /// @param name for messages   @throws what `write` throws; DeviceError (disk full, …)
  ExampleStore get(const std::string& key, const std::string& name,
                   const std::function<void(const std::filesystem::path&)>& write) const;

 private:
  std::filesystem::path folder_;  // empty: no cache
  int num_threads_;
};

}  // namespace sftrun::data
