#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/example.h"

/// Tokenized examples in memory or in a mapped file. Data sets may be larger than memory, and the
/// ranks of a machine share one copy.
namespace sftrun::data {

class TeacherScores;

/// A token; its highest bit says whether it has a label.
using MarkedToken = uint32_t;
inline constexpr MarkedToken kLabelBit = MarkedToken{1} << 31;

/// Location and origin of an example; an entry of the index in the file.
struct StoredExample {
  uint64_t offset = 0;        ///< of its first token, in tokens
  uint32_t length = 0;        ///< in tokens
  uint32_t label_tokens = 0;  ///< number of tokens with a label
  /// Number over all files of the data set; several examples may come from one record
  int64_t record = 0;
  int32_t file = 0;                         ///< index of its file in the data set
  uint32_t number = 0;                      ///< line or row in that file, from 1
  uint32_t first_media = 0, num_media = 0;  ///< in the index of images
  uint32_t answer_begin = 0;                ///< as Example::answer_begin
  uint32_t num_targets = 0;                 ///< values of Example::targets
  uint8_t judgement = 0;                    ///< a Judgement
  uint8_t columns = 0;                      ///< bit i: the example has LabelColumn i
  uint8_t score_kind = 0;                   ///< a ScoreKind
  uint8_t is_cut_short = 0;
  uint32_t record_bytes = 0;  ///< of Example::record_text
  double label_weight = 0;    ///< sum of the labels' weights; without weights `label_tokens`
  double score = 0;
  uint64_t group = 0;

  bool has(LabelColumn column) const {
    return (columns >> static_cast<unsigned>(column) & 1U) != 0;
  }
};
static_assert(sizeof(StoredExample) == 80);

/// A SequenceMedia; an entry of the index of images in the file.
struct StoredMedia {
  uint64_t media_offset = 0,
           media_size =
               0;  ///< in bytes from the first token: its path, its encoded file, or packed_files
  uint32_t width = 0, height = 0, rows = 0, num_tokens = 0;
  std::array<uint32_t, 3> grid_thw = {};
  int32_t feature = -1;
  uint32_t begin = 0, end = 0;
  enum Holds : uint32_t { kBytes, kPath, kFiles };
  uint32_t holds = kBytes;                                   ///< what `media_offset` is of
  uint32_t projector = 0;                                    ///< its number, from 1; 0: an image
  uint32_t video = 0, frames_of_video = 0, first_frame = 0;  ///< VideoFrames
  int32_t time = -1;
  bool is_image() const { return projector == 0; }
};
static_assert(sizeof(StoredMedia) == 80);

struct ExampleView {
  std::span<const MarkedToken> tokens;
  const StoredExample* stored = nullptr;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int32_t token(int64_t i) const {
    return static_cast<int32_t>(tokens[static_cast<size_t>(i)] & ~kLabelBit);
  }
  /// Whether the token is one to predict.   @pre i < size()
  bool has_label(int64_t i) const { return (tokens[static_cast<size_t>(i)] & kLabelBit) != 0; }
  /// Label of position i as in Example: the next token, or kIgnoreIndex if that has no label.
  int32_t label(int64_t i) const {
    return i + 1 < size() && has_label(i + 1) ? token(i + 1) : kIgnoreIndex;
  }
};

/// What examples have beside text.
struct MediaKinds {
  bool images = false, features = false;
};

/// Immutable and cheap to copy; copies share their contents.
class ExampleStore {
 public:
  ExampleStore() = default;
  static ExampleStore in_memory(const std::vector<Example>& examples);

  /// Opens a file written by ExampleWriter and verifies its checksums.
  /// @throws DataError for other or damaged files
  static ExampleStore open(const std::filesystem::path& file, int num_threads = 1);

  int64_t size() const { return num_selected_; }
  /// Verifies the checksums of the blocks that contain the example, at every call, because pages of
  /// a mapped file may be read from disk again. @throws DataError if they are damaged
  ExampleView operator[](int64_t index) const;
  const StoredExample& stored(int64_t index) const;
  /// The sizes of an example's images and features, without reading their files.
  std::span<const StoredMedia> stored_media(int64_t index) const;
  /// The images and features of an example, with the encoded files that records held.
  /// @throws DataError as operator[]
  std::vector<SequenceMedia> media_of(int64_t index) const;
  MediaKinds media_kinds() const;  ///< looks at examples until it has found both
  /// The columns of an example, and its targets.   @throws DataError as operator[]
  LabelValues values_of(int64_t index) const;
  std::vector<float> targets_of(int64_t index) const;
  /// Example::record_text.   @throws DataError as operator[]
  std::string record_text_of(int64_t index) const;
  /// Attaches the sum of log p of each example's labels by a reference model. Copies made afterwards
  /// share it; `concatenate` and `select` leave it out.   @pre one value for each example
  void set_reference_logps(std::vector<double> logps);
  /// null: there is none
  const std::vector<double>* reference_logps() const { return reference_logps_.get(); }
  /// Attaches the advantage of each example, in the same way.
  void set_advantages(std::vector<double> advantages);
  /// null: there are none
  const std::vector<double>* advantages() const { return advantages_.get(); }
  /// Attaches what a teacher says of all examples' labels. Copied, and left out, as the values above.
  /// @pre it has scored every example
  void set_teacher(std::shared_ptr<const TeacherScores> teacher) { teacher_ = std::move(teacher); }
  const std::shared_ptr<const TeacherScores>& teacher() const { return teacher_; }  ///< or null
  /// Concatenates stores.
  static ExampleStore concatenate(const std::vector<ExampleStore>& stores);
  /// The examples at `indices`, in this order.
  ExampleStore select(const std::vector<int64_t>& indices) const;
  /// The header passed to ExampleWriter::finish.
  const nlohmann::ordered_json& header() const;
  /// The bytes passed to ExampleWriter::finish.   @throws DataError as operator[]
  std::string_view attachment() const;

 private:
  struct Contents;
  struct Part {
    std::shared_ptr<const Contents> contents;
    int64_t end = 0;  // end of its examples in the concatenation
  };
  struct Place {
    const Contents* contents = nullptr;
    const StoredExample* stored = nullptr;
  };
  Place place_of(int64_t index) const;

  std::vector<Part> parts_;
  std::shared_ptr<const std::vector<int64_t>> selected_;  // null: all examples
  int64_t num_selected_ = 0;
  std::shared_ptr<const std::vector<double>> reference_logps_,
      advantages_;  // of each example; null: none
  std::shared_ptr<const TeacherScores> teacher_;
};

/// Writes a store's file example by example; the file appears when it is finished. Layout,
/// little-endian:
///     "sftrunE6"
///     tokens, uint32, and before those of an example with images their media (paths, and encoded
///       files that records held, each once), padded to a multiple of 4 bytes; after them the columns
///       that the example has, fp32 [label_tokens] each, its targets, fp32, and the text of its
///       record, padded to a multiple of 4 bytes; all padded to one of 8
///     the attachment, which the header locates ("attachment": offset and size in bytes from the first token)
///     index of StoredExample
///     index of StoredMedia
///     BlockChecksums of everything before the index, uint64
///     header as JSON
///     footer, uint64: index offset, number of examples, number of images, header offset, header
///       size, XXH3 of everything from the index to here
///     "sftrunE6"
class ExampleWriter {
 public:
  explicit ExampleWriter(const std::filesystem::path& file);
  void add(const Example& example);
  int64_t size() const { return static_cast<int64_t>(index_.size()); }
  /// @param header returned by ExampleStore::header   @param attachment of any size, which is not read with the header
  /// @throws DeviceError (disk full, …)
  void finish(nlohmann::ordered_json header, std::string_view attachment = {});

 private:
  void flush();
  void write(const void* data, size_t num_bytes);

  AtomicFile file_;
  BlockChecksums checksums_;
  std::vector<MarkedToken> buffer_;
  std::vector<StoredExample> index_;
  std::vector<StoredMedia> images_;
  std::map<std::string, uint64_t> media_;  // offset by hash
  uint64_t num_tokens_ = 0;                // with media
};

}  // namespace sftrun::data
