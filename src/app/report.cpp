#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/observe/html_report.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

Json report_json(const observe::HtmlReport& report, const std::filesystem::path& output) {
  Json runs = Json::array();
  for (const observe::ReportedRun& run : report.runs) {
    Json findings = Json::array();
    for (const observe::Finding& finding : run.findings)
      findings.push_back(
          {{"severity", observe::severity_name(finding.severity)}, {"text", finding.text}});
    runs.push_back({{"directory", run.directory.string()},
                    {"status", run.status},
                    {"last_step", run.last_step},
                    {"findings", findings}});
  }
  return {{"output", output.string()}, {"runs", runs}};
}

void print_findings(const observe::HtmlReport& report) {
  for (const observe::ReportedRun& run : report.runs) {
    fmt::print("{}: {}\n", run.directory.string(), counted(run.last_step, "step"));
    for (const observe::Finding& finding : run.findings)
      fmt::print("  {}: {}\n", observe::severity_name(finding.severity), finding.text);
  }
}

}  // namespace

int run_report(const ReportOptions& options) {
  const observe::HtmlReport report = observe::html_report(options.run_dirs);
  write_file_atomically(options.output, report.html, options.special);
  if (options.json) {
    fmt::print(
        "{}\n",
        report_json(report, options.output).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_findings(report);
    fmt::print("{}\n", options.output.string());
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
