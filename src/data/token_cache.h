#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sftrun/data/example_store.h"

/// Tokenised data sets that are kept: a folder for each, named by what it was made of.
namespace sftrun::data {

class TokenCache {
 public:
  /// @param configured data.cache_dir: a folder, empty for the user's cache, or "none"
  /// @param num_threads that compare what is kept with its checksums
  explicit TokenCache(const std::string& configured, int num_threads = 1);

  /// Where hashes of data files are remembered; empty: nowhere.
  std::filesystem::path hashes() const;

  /// The examples under `key`, written by `write` (with "key" in the header) if they are not there
  /// yet, or damaged, or another key's. Of several processes that ask at once one writes, the others wait for it; what a killed one has left is
  /// removed.
  /// @param name for messages   @throws what `write` throws; DeviceError (disk full, …)
  ExampleStore get(const std::string& key, const std::string& name,
                   const std::function<void(const std::filesystem::path&)>& write) const;

 private:
  std::filesystem::path folder_;  // empty: nothing is kept
  int num_threads_;
};

}  // namespace sftrun::data
