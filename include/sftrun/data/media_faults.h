#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/data/example.h"

/// Images and features that cannot be read when a batch needs them.
namespace sftrun::data {

/// Of an image or of features in a batch; it names the file.
class MediaError : public DataError {
 public:
  /// @param document its key in the batch (`Batch::document_keys`); of generation the index of its prompt
  /// @param is_of_file false: the model's files are at fault, so that other records are no better
  MediaError(const DataError& error, int64_t document, bool is_of_file = true)
      : DataError(error.message(), error.where(),
                  error.fix().empty() ? "restore the file" : error.fix()),
        document_(document),
        is_of_file_(is_of_file) {}
  int64_t document() const { return document_; }
  bool is_of_file() const { return is_of_file_; }

 private:
  int64_t document_;
  bool is_of_file_;
};

/// The error with its record, and what to do.
/// @param record "file:line"   @param may_be_left_out whether data.bad_records: skip helps
DataError error_in_record(const MediaError& error, const std::string& record, bool may_be_left_out);

/// Takes note of errors, where something blank may stand in the place of what cannot be read. Thread-safe.
class MediaFaults {
 public:
  void add(const MediaError& error);
  /// Those since the last call, in the order of their documents.
  std::vector<MediaError> take();

 private:
  std::mutex mutex_;
  std::vector<MediaError> errors_;
};

/// The key of the document that a row of the batch belongs to.
int64_t document_key_of(const Batch& batch, int64_t row);

/// Calls `read`, which reads `media` of the batch.   @param faults null: errors are thrown
/// @return whether there is something to use: not of blank media, which are not read, and not after an error
/// @throws MediaError
template <class Read>
bool read_of_batch(const Batch& batch, const SequenceMedia& media, MediaFaults* faults,
                   const Read& read) {
  if (media.is_blank) return false;
  try {
    read();
    return true;
  } catch (const DataError& error) {
    const MediaError of_document(error, document_key_of(batch, media.begin));
    if (faults == nullptr) throw of_document;
    faults->add(of_document);
    return false;
  }
}

}  // namespace sftrun::data
