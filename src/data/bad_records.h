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

/// Records that cannot be used: malformed, of another format, or refused by the chat template. All
/// are counted; the first ten are kept for the message.
class BadRecords {
 public:
  /// @param record its number in the data set, from 0
  void add(const DataError& error, int64_t record);
  int64_t count() const { return count_; }

  /// Of the numbers of these records.
  std::string fingerprint() const { return fingerprint_.hex(); }
  /// "2 bad records left out (data.bad_records: skip): a.jsonl:2 (malformed JSON: …), …": the first
  /// three.
  std::string left_out() const;
  /// Whether nothing more is learnt by reading on: all of the first thousand records are bad.
  bool is_hopeless(int64_t num_records) const;
  /// Whether reading on, only to count, has taken long enough.
  bool took_long() const;

  /// @throws DataError as `refuse` does, unless they may be left out and others are there
  void require_usable(config::BadRecords choice, int64_t num_records,
                      const std::string& scope = {}) const;
  /// @param num_records that were looked at, these among them
  /// @param scope "of the first 100 records: ", or empty
  /// @throws DataError naming the first ten, with their reasons, and how many there are
  [[noreturn]] void refuse(int64_t num_records, const std::string& scope = {}) const;

 private:
  std::string fix(int64_t num_records) const;

  static constexpr size_t kKept = 10;
  int64_t count_ = 0;
  std::vector<DataError> first_;
  bool same_reason_ = true;
  Fingerprint fingerprint_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace sftrun::data
