#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "metrics_table.h"
#include "sftrun/config/settings_text.h"
#include "sftrun/observe/html_report.h"
#include "sftrun/observe/run_report.h"

/// What a run directory holds, for a report.
namespace sftrun::observe {

/// A warning or an error in the logs of the ranks.
struct LoggedWarning {
  std::string text;
  size_t count = 0;  ///< times that it is in the logs of all ranks, of whatever steps
  std::optional<int64_t>
      last_step;  ///< the largest step that it came at, if not only at that in its text
  bool is_error = false;
};

/// Answers of one file in answers/, by the lines of their records.
struct AnswerFile {
  std::string name;  ///< "before" of answers/before.jsonl
  struct Answer {
    std::string prompt, reference, text;  ///< reference: the record's own answer; may be empty
  };
  std::vector<Answer> answers;
};

/// The status of a run that run.json calls "running", and whose launcher has ended all the same.
inline constexpr const char* kKilled = "killed";

struct RunRecord {
  std::filesystem::path directory;
  std::string name;                 ///< last part of the path
  std::optional<RunReport> report;  ///< its status may be kKilled
  MetricsTable metrics;
  config::SettingsText settings;
  std::vector<AnswerFile> answers;
  std::vector<LoggedWarning> warnings;
  size_t num_more_warnings = 0;         ///< others that are not in `warnings`
  std::vector<std::string> unreadable;  ///< files that could not be read, with the reason

  /// The value of a setting; empty: unknown.
  std::string setting(const std::string& key) const;
};

/// @throws DataError if the directory has neither metrics.jsonl nor run.json
RunRecord read_run_record(const std::filesystem::path& directory);

/// Index of the rank with the most bytes. @pre there are ranks
size_t fullest_rank(const RunReport& report);

}  // namespace sftrun::observe
