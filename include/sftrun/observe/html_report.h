#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// One HTML page about one or several runs, which needs no other file and no network.
namespace sftrun::observe {

enum class Severity { kProblem, kWarning, kNote };
std::string_view severity_name(Severity severity);  ///< "problem", "warning", "note"

/// Something in a run that its user should know.
struct Finding {
  Severity severity = Severity::kNote;
  std::string text;
};

struct ReportedRun {
  std::filesystem::path directory;
  std::string status;     ///< as in run.json; empty: unknown
  int64_t last_step = 0;  ///< of metrics.jsonl
  std::vector<Finding> findings;
};

struct HtmlReport {
  std::string html;
  std::vector<ReportedRun> runs;  ///< in the order of the directories
};

/// Curves, memory beside its estimate, settings, answers and findings of runs, which may still be in
/// progress. Files that are missing or damaged become findings.
/// @throws DataError if a directory has neither metrics.jsonl nor run.json
HtmlReport html_report(const std::vector<std::filesystem::path>& run_dirs);

/// Writes `html_report` of one run to its report.html. @throws as html_report, and DeviceError
void write_html_report(const std::filesystem::path& run_dir);

}  // namespace sftrun::observe
