#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/example.h"

/// Tokenised examples, in memory or in a mapped file: data sets may be larger than memory, and the
/// ranks of a machine share one copy.
namespace sftrun::data {

/// A token and, in its highest bit, whether it is learnt.
using MarkedToken = uint32_t;
inline constexpr MarkedToken kLearntBit = MarkedToken{1} << 31;

/// Where an example lies and what it came from; the unit of the index on disk.
struct StoredExample {
  uint64_t offset = 0;        ///< of its first token, in tokens
  uint32_t length = 0;        ///< in tokens
  uint32_t label_tokens = 0;  ///< of these, how many are predicted
  int64_t record = 0;         ///< over all files of the data set; examples of one record share it
  int32_t file = 0;           ///< index into the data set's files
  uint32_t number = 0;        ///< line or row in that file, from 1
};
static_assert(sizeof(StoredExample) == 32);

struct ExampleView {
  std::span<const MarkedToken> tokens;
  const StoredExample* stored = nullptr;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int32_t token(int64_t i) const {
    return static_cast<int32_t>(tokens[static_cast<size_t>(i)] & ~kLearntBit);
  }
  /// As Example has it: the token to predict at i; kIgnoreIndex where none is learnt.
  int32_t label(int64_t i) const {
    const bool learnt = i + 1 < size() && (tokens[static_cast<size_t>(i) + 1] & kLearntBit) != 0;
    return learnt ? token(i + 1) : kIgnoreIndex;
  }
};

/// Immutable and cheap to copy; copies share what they hold.
class ExampleStore {
 public:
  ExampleStore() = default;
  static ExampleStore in_memory(const std::vector<Example>& examples);

  /// A file written by ExampleWriter, of which every byte is compared with its checksum.
  /// @throws DataError for any other, or a damaged one
  static ExampleStore open(const std::filesystem::path& file, int num_threads = 1);

  int64_t size() const { return num_selected_; }
  /// Compares the blocks that hold the example with their checksums, at every call: the pages of a
  /// mapped file come from the disk again and again. @throws DataError when they are damaged
  ExampleView operator[](int64_t index) const;
  const StoredExample& stored(int64_t index) const;
  /// One after the other.
  static ExampleStore concatenate(const std::vector<ExampleStore>& stores);
  /// The examples at `indices` of this store, in their order.
  ExampleStore select(const std::vector<int64_t>& indices) const;
  /// What the writer of a file said beside the examples.
  const nlohmann::ordered_json& header() const;

 private:
  struct Contents;
  struct Part {
    std::shared_ptr<const Contents> contents;
    int64_t end = 0;  // of its examples, among those of all parts
  };
  struct Place {
    const Contents* contents = nullptr;
    const StoredExample* stored = nullptr;
  };
  Place place_of(int64_t index) const;

  std::vector<Part> parts_;
  std::shared_ptr<const std::vector<int64_t>> selected_;  // null: all
  int64_t num_selected_ = 0;
};

/// Writes a store's file example by example; it appears when it is finished. The layout, little
/// endian: "sftrunEX" | tokens, uint32 | padding to 8 | index of StoredExample | BlockChecksums of
/// everything before the index, uint64 | header as JSON | footer {index offset, number of examples,
/// header offset, header size, XXH3 of everything from the index to here, all uint64} | "sftrunEX".
class ExampleWriter {
 public:
  explicit ExampleWriter(const std::filesystem::path& file);
  void add(const Example& example);
  int64_t size() const { return static_cast<int64_t>(index_.size()); }
  /// @param header for whoever opens the file   @throws DeviceError (disk full, …)
  void finish(const nlohmann::ordered_json& header);

 private:
  void flush();
  void write(const void* data, size_t num_bytes);

  AtomicFile file_;
  BlockChecksums checksums_;
  std::vector<MarkedToken> buffer_;
  std::vector<StoredExample> index_;
  uint64_t num_tokens_ = 0;
};

}  // namespace sftrun::data
