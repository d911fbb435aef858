#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"

namespace sftrun::data {

/// Why a record cannot be used.
struct BadRecord {
  DataError error;
  bool may_be_left_out =
      true;                 ///< by data.bad_records: skip; not if data.too_long: error refuses it
  std::string place = {};   ///< of the record, with which the error's place begins; empty: unknown
  bool lacks_file = false;  ///< that it names with a relative path (MissingFileError)
};
/// @param error as it was thrown   @param place "file:line"
BadRecord bad_record_of(const DataError& error, const std::string& place,
                        bool may_be_left_out = true);

/// Records that cannot be used: malformed, in another format, refused by the chat template, or too
/// long with data.too_long: error. All are counted, and the first ten are kept for the message.
class BadRecords {
 public:
  /// @param record its number in the data set, from 0
  void add(const BadRecord& bad, int64_t record);
  int64_t count() const { return count_; }

  /// A hash of the numbers of these records.
  std::string fingerprint() const { return fingerprint_.hex(); }
  /// "2 bad records left out (data.bad_records: skip): a.jsonl:2 (malformed JSON: …), …", with the
  /// first three.
  /// @param num_records records that were read, including the bad ones
  std::string left_out(int64_t num_records) const;
  /// Whether to give up: all of the first thousand records are bad.
  bool is_hopeless(int64_t num_records) const;
  /// Whether reading on, only to count, should stop.
  bool took_long() const;

  /// @param scope see `refuse`; empty: these are all records
  /// @throws DataError as `refuse`, unless bad records may be left out and there are others, or may
  /// be behind those of the scope
  void require_usable(config::BadRecords choice, int64_t num_records,
                      const std::string& scope = {}) const;
  /// @param num_records records that were read, including the bad ones
  /// @param scope "of the first 100 records: ", or empty
  /// @throws DataError with the first ten, their reasons, and the number of all
  [[noreturn]] void refuse(int64_t num_records, const std::string& scope = {}) const;

 private:
  std::string fix(int64_t num_records) const;
  /// Of the kept ones after the first: "b.jsonl:3, …", or "lines 4, 7, …" if all are of one file.
  std::string further_places() const;

  static constexpr size_t kKept = 10;
  int64_t count_ = 0;
  struct Kept {
    DataError error;
    std::string place;
  };
  /// Whether most of these records name files that are not there, relative to a folder.
  bool lack_files(int64_t num_records) const;
  std::vector<Kept> first_;
  int64_t num_without_file_ = 0;
  bool same_reason_ = true, may_be_left_out_ = true;
  Fingerprint fingerprint_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace sftrun::data
