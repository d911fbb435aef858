#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/example_store.h"
#include "sftrun/data/media_faults.h"
#include "sftrun/model/decoder.h"
#include "sftrun/parallel/communicator.h"

/// Records whose images or features cannot be read when a batch needs them, with data.bad_records: skip.
///
/// Such a record keeps its place, so that the division of the data stays what it is. Something blank stands for the image, and no token of
/// the record has a label. The number of labels, by which losses and gradients are divided, is known before files are read, and one rank
/// alone reads each. So ranks note what they could not read and go on with labels as planned; after the passes all ranks exchange their
/// notes, and if there are any the passes run again, without the labels of these records on every rank.
namespace sftrun::train {

/// A global batch, the same on all ranks.
struct MediaRecords {
  const std::vector<data::Bin>& bins;
  const data::ExampleStore& examples;
  std::function<std::string(int64_t example)> place_of;  ///< "file:line"
  std::set<int64_t>& lost;                               ///< receives examples (data::make_batch)
  int64_t* label_tokens = nullptr;                       ///< loses the labels of these
};

/// Not thread-safe.
class LostMedia {
 public:
  LostMedia(parallel::Communicator& comm, config::BadRecords bad_records)
      : comm_(comm), is_tolerant_(bad_records == config::BadRecords::kSkip) {}

  /// Calls `run`, the passes of this rank over the batch, and notes what they cannot read.
  /// @throws DataError naming the record, unless data.bad_records: skip
  template <class Run>
  auto note_during(model::Decoder& decoder, const MediaRecords& records, const Run& run) {
    struct Noting {
      Noting(model::Decoder& of, data::MediaFaults* faults) : decoder(of) {
        decoder.note_media_faults_in(faults);
      }
      ~Noting() { decoder.note_media_faults_in(nullptr); }
      Noting(const Noting&) = delete;
      Noting& operator=(const Noting&) = delete;
      model::Decoder& decoder;
    } const noting(decoder, is_tolerant_ ? &faults_ : nullptr);
    try {
      return run();
    } catch (const data::MediaError& error) {
      throw error_of(error, records);
    }
  }
  void forget_noted() { faults_.take(); }

  /// Adds records to `lost` that are known to be.
  void add_known(const MediaRecords& records) const;
  /// On all ranks: adds what any of them noted to `lost`, with the other sequences of these records, and warns once of each file.
  /// @param when for the warning: "step 3"   @return whether there is any
  /// @throws DataError if none of the last 100 records with images could be used
  bool agree(const MediaRecords& records, const std::string& when);
  int64_t num_records() const { return std::ssize(known_); }

 private:
  DataError error_of(const data::MediaError& error, const MediaRecords& records) const;
  std::set<int64_t> known_of(const MediaRecords& records) const;
  void warn(const data::MediaError& error, const std::string& place, const std::string& when);
  void count_in_a_row(const MediaRecords& records);

  parallel::Communicator& comm_;
  bool is_tolerant_;
  data::MediaFaults faults_;
  std::set<std::string> known_;     // places of records
  std::set<std::string> said_;      // files
  std::optional<DataError> first_;  // of those in a row
  int64_t num_in_a_row_ = 0;
};

}  // namespace sftrun::train
