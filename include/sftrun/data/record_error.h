#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::data {

/// The advice for a text that is no string.
inline constexpr const char* kWriteString =
    "write it as a string: in quotes in JSON, as a column of strings in a table";

/// The keys of each format of one answer: "messages"; "prompt" and "completion"; …, in quotes.
std::vector<std::string> keys_of_formats();
/// Advice for commands, which have no data.fields.
std::string advice_to_write_keys();

/// A record that cannot be read, where settings of a run may help. Commands that read no run's
/// configuration throw `without_settings()` in its place.
class RecordError : public DataError {
 public:
  /// @param fix with settings of a run   @param fix_without what to do to the record instead
  RecordError(std::string message, std::string where, std::string fix,
              std::string fix_without = advice_to_write_keys())
      : DataError(std::move(message), std::move(where), std::move(fix)),
        fix_without_(std::move(fix_without)) {}

  DataError without_settings() const { return DataError(message(), where(), fix_without_); }

 private:
  std::string fix_without_;
};

}  // namespace sftrun::data
