#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/data/example_store.h"

/// Log-probabilities of a reference model, kept for later runs beside tokenized data.
namespace sftrun::data {

/// One file for each key, a hash of everything that the values depend on. Layout, little-endian:
///     "sftrunR1", number of values uint64, the values as fp64, XXH3 of everything before it uint64
class ReferenceCache {
 public:
  /// @param configured data.cache_dir: a folder, empty for the user's cache, or "none"
  explicit ReferenceCache(const std::string& configured);

  /// The values of a key; nullopt: there are none, or their file is damaged or of another size.
  /// @param size how many they must be
  std::optional<std::vector<double>> read(const std::string& key, int64_t size) const;
  /// Does nothing without a cache; warns if the file cannot be written.
  void write(const std::string& key, const std::vector<double>& values) const;

 private:
  std::filesystem::path file_of(const std::string& key) const;
  std::filesystem::path folder_;  // empty: no cache
};

/// Hash of the tokens and labels of all examples, in order.   @throws DataError if they are damaged
std::string hash_of_examples(const ExampleStore& examples);

}  // namespace sftrun::data
