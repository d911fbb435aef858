#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::engine {

/// The answers of a command that was interrupted, and those that are added: a folder with one file of
/// lines for each rank. Each answer is written when it is finished, so that a killed command loses
/// only answers that were not finished.
///
///     settings.json      what the answers depend on
///     rank-0.jsonl …     {"record": 17, …}, in the order in which they were finished
class AnswerParts {
 public:
  /// All ranks call it. The folder is created where it is missing. An incomplete last line is
  /// removed.
  /// @param settings what the answers depend on
  /// @param num_records lines of other records are ignored
  /// @param starts_over removes what the folder holds
  /// @throws ConfigError if the folder holds answers of other settings, or if this rank does not see
  /// the folder of rank 0
  AnswerParts(std::filesystem::path folder, const nlohmann::ordered_json& settings,
              size_t num_records, bool starts_over, parallel::Communicator& comm);

  /// The answers of the folder when it was opened, by record.
  const std::map<size_t, nlohmann::ordered_json>& before() const { return before_; }
  /// @param answer an object
  void add(size_t record, nlohmann::ordered_json answer);
  /// Ends this rank's additions. All ranks call it; afterwards `read` has the answers of all, also
  /// on a network file system, which shows others what is written when a file is closed.
  void close(parallel::Communicator& comm);
  /// All answers so far of all ranks, by record.
  std::map<size_t, nlohmann::ordered_json> read() const;
  /// Removes the files. Not the folder, which may hold logs.
  void remove();

 private:
  std::filesystem::path folder_;
  size_t num_records_;
  LineFile own_;
  std::map<size_t, nlohmann::ordered_json> before_;
};

}  // namespace sftrun::engine
