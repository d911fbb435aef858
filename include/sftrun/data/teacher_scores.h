#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/example.h"
#include "sftrun/data/example_store.h"
#include "sftrun/tokenizer/tokenizer.h"

/// What a teacher says of the label tokens of examples, kept in a folder (docs/distillation.md):
///     teacher.json      TeacherDescription
///     NNNNN-RRR.scores  parts, each with any number of examples (name_of_part)
/// Other files there are not read. A part appears when it is complete. More parts may be added at any
/// time, so that an interrupted command resumes, and new records are scored alone. Examples are found
/// by their tokens, so that their order does not matter.
namespace sftrun::data {

/// What the values of all parts depend on.
struct TeacherDescription {
  int64_t k = 0;
  double temperature = 1;
  std::string teacher;      ///< its name, for messages
  std::string fingerprint;  ///< of its weights
  std::string dtype;        ///< it computed in: "bf16"
  /// For templates that write the date: students' examples are rendered with it.
  int64_t rendered_at_unix_s = 0;
  std::vector<std::string> tokens;  ///< of its tokenizer, by their numbers

  nlohmann::ordered_json to_json() const;
  /// @param where for messages   @throws DataError
  static TeacherDescription from_json(const nlohmann::ordered_json& json, const std::string& where);
  /// Of everything but names and times.
  uint64_t hash() const;
};

/// @param where names the setting `temperature` of a student, for messages
/// @throws ConfigError if the scores were written with another one
void require_temperature(const TeacherDescription& teacher, double temperature,
                         const std::string& where);

/// The tokens of a tokenizer by their numbers, as `TeacherDescription::tokens`. Merges and the other
/// parts of a tokenizer are compared by what they do: the keys of examples.
std::vector<std::string> tokens_of(const tokenizer::Tokenizer& tokenizer);

/// XXH3 of an example's tokens, of which of them have a label, and of what its images are.
struct ExampleKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const ExampleKey&) const = default;
};
/// @throws DataError if the example is damaged
ExampleKey key_of_example(const ExampleStore& examples, int64_t index);

/// The rows of an example; an entry of a part's index, which is sorted by keys.
struct StoredScores {
  ExampleKey key;
  uint64_t offset = 0;  ///< of its first value, in values of 4 bytes from the first of the part
  uint64_t rows = 0;
};
static_assert(sizeof(StoredScores) == 32);

/// "00012-003.scores": part 12 of rank 3.
std::string name_of_part(int64_t number, int rank);
/// The files of a folder that have names of parts, sorted. Unfinished parts have none.
std::vector<std::filesystem::path> parts_in(const std::filesystem::path& folder);

/// The mapped files of a folder. Immutable.
class TeacherScores {
 public:
  /// Whether the folder has a teacher.json.
  static bool are_in(const std::filesystem::path& folder);
  /// @throws DataError if there are none, or a file is damaged or of another teacher
  explicit TeacherScores(const std::filesystem::path& folder);

  const TeacherDescription& description() const { return description_; }
  const std::filesystem::path& folder() const { return folder_; }
  bool has(const ExampleKey& key) const { return place_of(key).stored != nullptr; }
  /// Appends the rows of an example.
  /// @param num_rows how many it must have   @throws DataError if it has others, or they are damaged
  /// @pre has(key)
  void append(const ExampleKey& key, int64_t num_rows, TeacherRows& to) const;
  /// Reads every value.   @throws DataError naming a damaged part; Interrupted
  void require_whole() const;
  int64_t num_parts() const { return static_cast<int64_t>(parts_.size()); }
  uint64_t num_bytes() const;

 private:
  struct Part {
    MappedFile file;
    std::span<const StoredScores> index;
    std::span<const uint64_t> checksums;
    uint64_t values_end = 0;  // in bytes of the file
  };
  struct Place {
    const Part* part = nullptr;
    const StoredScores* stored = nullptr;
  };
  Part open_part(const std::filesystem::path& file) const;
  Place place_of(const ExampleKey& key) const;
  void require_whole(const Part& part, uint64_t begin, uint64_t end) const;

  std::filesystem::path folder_;
  TeacherDescription description_;
  std::vector<Part> parts_;
};

/// Writes a folder's description.   @throws DeviceError
void write_teacher(const std::filesystem::path& folder, const TeacherDescription& description);

/// Writes one part, which appears when it is finished. Layout, little-endian:
///     "sftrunK1"
///     of each example: tokens int32 [rows, k], log-probabilities fp32 [rows, k + 1]; padded to a
///       multiple of 8 bytes
///     index of StoredScores
///     BlockChecksums of everything before the index, uint64
///     footer, uint64: index offset, number of examples, TeacherDescription::hash, XXH3 of everything
///       from the index to here
///     "sftrunK1"
class TeacherPartWriter {
 public:
  TeacherPartWriter(const std::filesystem::path& file, const TeacherDescription& description);
  /// @param tokens [rows * k]   @param log_probs [rows * (k + 1)]
  void add(const ExampleKey& key, std::span<const int32_t> tokens,
           std::span<const float> log_probs);
  uint64_t num_bytes() const { return bytes_; }
  bool is_empty() const { return index_.empty(); }
  void finish();

 private:
  void write(const void* data, size_t num_bytes);

  AtomicFile file_;
  BlockChecksums checksums_;
  std::vector<StoredScores> index_;
  uint64_t k_ = 0, description_ = 0, bytes_ = 0;
};

}  // namespace sftrun::data
