#include "sftrun/observe/html_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>
#include <set>

#include "charts.h"
#include "findings.h"
#include "resources.h"
#include "run_record.h"
#include "sftrun/config/objectives.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/core/file.h"
#include "sftrun/core/html.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::observe {
namespace fs = std::filesystem;
namespace {

/// The colour of a run's curves, or of an entry of a list (page.css has eight).
std::string chip(size_t index) {
  constexpr size_t kColours = 8;
  return fmt::format("<i class=\"chip\" style=\"--chip:var(--curve-{})\"></i>", index % kColours);
}

/// One row of a table that has a column for each run. Values are texts, not HTML.
struct ComparedRow {
  std::string name;
  std::vector<std::string> values;
};

bool differs(const ComparedRow& row) {
  return std::any_of(row.values.begin(), row.values.end(),
                     [&](const std::string& value) { return value != row.values.front(); });
}

std::string run_heads(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i)
    html += fmt::format("<th scope=\"col\">{}{}</th>", runs.size() > 1 ? chip(i) : "",
                        escape_html(runs[i].name));
  return html;
}

/// @param marks_differences of the runs, as for settings
std::string comparison_table(const std::vector<RunRecord>& runs,
                             const std::vector<ComparedRow>& rows, bool marks_differences) {
  std::string html = fmt::format(
      "<div class=\"wide\"><table><thead><tr><td></td>{}</tr></thead><tbody>\n", run_heads(runs));
  for (const ComparedRow& row : rows) {
    const char* kind = !marks_differences ? ""
                       : differs(row)     ? " class=\"differs\""
                                          : " class=\"same\"";
    html += fmt::format("<tr{}><th scope=\"row\">{}</th>", kind, escape_html(row.name));
    for (const std::string& value : row.values)
      html += fmt::format("<td>{}</td>", escape_html(value));
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

// ---- Overview

std::string time_text(double unix_seconds) {
  if (!(unix_seconds > 0) || unix_seconds > 1e11) return {};
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

double sum_of(const std::vector<double>* column) {
  if (column == nullptr) return 0;
  return std::accumulate(column->begin(), column->end(), 0.0, [](double sum, double value) {
    return std::isfinite(value) ? sum + value : sum;
  });
}

std::string first_and_last(const std::vector<double>* column) {
  if (column == nullptr || column->empty()) return {};
  return column->size() == 1 ? fmt::format("{:.4f}", column->front())
                             : fmt::format("{:.4f} → {:.4f}", column->front(), column->back());
}

/// Of a metric that some lines lack.
std::string first_and_last_finite(const std::vector<double>* column) {
  if (column == nullptr) return {};
  std::vector<double> values = *column;
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return first_and_last(&values);
}

std::string best_validation(const MetricsColumns& evaluation) {
  const std::vector<double>* loss = evaluation.find("eval_loss");
  if (loss == nullptr) return {};
  size_t best = loss->size();
  for (size_t row = 0; row < loss->size(); ++row)
    if (std::isfinite((*loss)[row]) && (best == loss->size() || (*loss)[row] < (*loss)[best]))
      best = row;
  if (best == loss->size()) return {};
  return fmt::format("{:.4f} at step {}", (*loss)[best], evaluation.steps[best]);
}

std::string peak_memory(const MetricsColumns& training) {
  const auto ranks = training.per_rank.find("peak_memory_bytes");
  if (ranks == training.per_rank.end()) return {};
  double peak = 0;
  for (const auto& column : ranks->second)
    for (const double bytes : column) peak = std::fmax(peak, bytes);
  return format_bytes(static_cast<uint64_t>(peak));
}

std::string device_text(const RunReport& report) {
  std::set<std::string> names(report.device_names.begin(), report.device_names.end());
  return fmt::format("{} × {}", report.world_size,
                     join(std::vector<std::string>(names.begin(), names.end()), ", "));
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : "";
}

using RunFact = std::pair<std::string, std::string>;

/// The evaluation for which the run kept its weights; empty: they are those of the last step.
std::string kept_weights(const RunRecord& run) {
  if (run.setting("train.load_best_model_at_end") != "true" || !run.report) return {};
  const nlohmann::ordered_json& best = run.report->best;
  if (!best.is_object() || !best.value("value", nlohmann::ordered_json()).is_number()) return {};
  return fmt::format("after step {}, with the best {}: {:.6g}", best.value("step", int64_t{0}),
                     best.value("metric", std::string("evaluation")), best["value"].get<double>());
}

/// The metrics by which objectives are judged, where the loss says little. A run has those of its objective.
void add_shown_metrics(const RunRecord& run, std::vector<RunFact>& facts) {
  const config::ObjectiveInfo* of_run = config::find_objective(run.setting("train.objective"));
  // Rewards of answers that were sampled before the run do not tell what its model does.
  const bool is_of_others = of_run != nullptr && of_run->takes_rollouts &&
                            run.metrics.training.find("rollouts/seconds") == nullptr;
  const config::ShownMetric own =
      of_run != nullptr && !is_of_others ? of_run->shown : config::ShownMetric{};
  std::set<std::string_view> words;
  for (const config::ObjectiveInfo& objective : config::kObjectives) {
    const std::string_view word = objective.shown.word;
    if (word.empty() || !words.insert(word).second) continue;
    const bool is_own = own.word == word;
    const auto values = [&](const MetricsColumns& columns, const std::string& metric) {
      return is_own ? first_and_last_finite(columns.find(metric)) : "";
    };
    facts.emplace_back(fmt::format("Training {}", word),
                       values(run.metrics.training, std::string(own.metric)));
    facts.emplace_back(fmt::format("Validation {}", word),
                       values(run.metrics.evaluation, fmt::format("eval_{}", own.metric)));
  }
}

std::vector<RunFact> overview_of(const RunRecord& run) {
  const MetricsColumns& training = run.metrics.training;
  const RunReport report = run.report.value_or(RunReport{});
  const double tokens = sum_of(training.find("tokens")),
               seconds = sum_of(training.find("step_seconds"));
  const config::ObjectiveInfo* objective = config::find_objective(run.setting("train.objective"));
  const std::string_view of_texts =
      objective != nullptr ? config::trained_of_texts(objective->head) : std::string_view();
  const std::string r = run.setting("tuning.mode") == "full" ? "" : run.setting("tuning.lora.r");
  std::vector<RunFact> facts = {
      {"Status", report.status},
      {"Base model", report.base_model},
      {"Tuning", run.setting("tuning.mode") + (r.empty() ? "" : ", r " + r)},
      {"Devices", run.report ? device_text(report) : ""},
      {"Strategy, dtype", run.report ? report.strategy + ", " + report.dtype : ""},
      {"Steps", training.empty() ? "" : std::to_string(training.steps.back())},
      {"Tokens", training.empty() ? "" : format_count(static_cast<uint64_t>(tokens))},
      {"Tokens trained on", !of_texts.empty() ? fmt::format("none: {}", of_texts)
                            : tokens > 0 ? percent(sum_of(training.find("label_tokens")) / tokens)
                                         : ""},
      {"Packed positions in use", percent(packed_share(run))},
      {"Time of the steps", training.empty() ? "" : format_duration(seconds)},
      {"Tokens per second",
       seconds > 0 ? format_count(static_cast<uint64_t>(tokens / seconds)) : ""}};
  add_shown_metrics(run, facts);
  for (RunFact& fact : std::vector<RunFact>{
           {"Training loss", first_and_last(training.find("loss"))},
           {"Validation loss", first_and_last(run.metrics.evaluation.find("eval_loss"))},
           {"Best validation loss", best_validation(run.metrics.evaluation)},
           {"Saved weights", kept_weights(run)},
           {"Peak memory of a process", peak_memory(training)},
           {"Started", time_text(report.started_at)},
           {"Finished", report.finished_at ? time_text(*report.finished_at) : ""}})
    facts.push_back(std::move(fact));
  return facts;
}

std::vector<RunFact> identity_of(const RunRecord& run) {
  const RunReport report = run.report.value_or(RunReport{});
  return {{"sftrun", report.version},
          {"tuning.backend", report.backend},
          {"Communication", report.comm_backend},
          {"Model files", report.base_model_path},
          {"Fingerprint of the model", report.base_model_fingerprint},
          {"Fingerprint of the data", report.dataset_fingerprint},
          {"Fingerprint of the settings", report.config_fingerprint}};
}

/// Facts that no run has are left out.
std::vector<ComparedRow> side_by_side(const std::vector<RunRecord>& runs,
                                      std::vector<RunFact> (*facts_of)(const RunRecord&)) {
  std::vector<ComparedRow> rows;
  for (const RunRecord& run : runs) {
    const std::vector<RunFact> facts = facts_of(run);
    rows.resize(facts.size());
    for (size_t i = 0; i < facts.size(); ++i) {
      rows[i].name = facts[i].first;
      rows[i].values.push_back(facts[i].second);
    }
  }
  std::erase_if(rows, [](const ComparedRow& row) {
    return std::all_of(row.values.begin(), row.values.end(),
                       [](const std::string& value) { return value.empty(); });
  });
  return rows;
}

// ---- Findings

std::string findings_html(const std::vector<RunRecord>& runs,
                          const std::vector<ReportedRun>& reported) {
  std::string html = "<h2 id=\"findings\">Findings</h2>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > 1) html += fmt::format("<h3>{}{}</h3>\n", chip(i), escape_html(runs[i].name));
    if (reported[i].findings.empty()) html += "<p class=\"quiet\">Nothing unusual was found.</p>\n";
    html += "<ul class=\"findings\">\n";
    for (const Finding& finding : reported[i].findings)
      html += fmt::format("<li class=\"{0}\"><b>{0}</b> {1}</li>\n",
                          severity_name(finding.severity), escape_html(finding.text));
    html += "</ul>\n";
  }
  return html;
}

// ---- Charts

constexpr std::string_view kChartTools = R"(<div class="tools">
<label>Horizontal axis <select id="axis"><option value="steps">steps</option><option value="tokens">tokens</option>
<option value="hours">hours</option></select></label>
<label>Smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0"></label>
<label><input id="log" type="checkbox"> logarithmic</label>
<button id="reset" type="button">Reset zoom</button>
<span class="quiet">Drag to zoom, shift-drag to move, double-click to reset; on a phone use two fingers.</span></div>
)";

std::string charts_html(const std::vector<Chart>& charts) {
  if (charts.empty()) return "";
  std::string html = "<h2 id=\"curves\">Curves</h2>\n";
  if (kChartScript.empty())
    return html +
           "<p class=\"quiet\">This build of sftrun has no library for charts. Install dygraphs "
           "(Debian: libjs-dygraphs), build again, and write the report again.</p>\n";
  html += "<noscript><p>The curves need JavaScript.</p></noscript>\n";
  html += kChartTools;
  html += "<div class=\"charts\">\n";
  for (const Chart& chart : charts) {
    size_t max_rows = 0;
    for (const Curve& curve : chart.curves) max_rows = std::max(max_rows, curve.steps.size());
    std::string about = chart.about;
    if (max_rows > 2 * kDrawnRanges)
      about += fmt::format("{}lowest and highest of every {} steps", about.empty() ? "" : "; ",
                           max_rows / kDrawnRanges);
    html += fmt::format(
        "<figure><h3>{} <small>{}</small></h3><div class=\"keys\"></div><div class=\"plot\" "
        "role=\"img\" aria-label=\"{}\"></div></figure>\n",
        escape_html(chart.title), escape_html(about), escape_html(chart.title));
  }
  return html + "</div>\n";
}

// ---- Memory

struct Purpose {
  const char* name;
  uint64_t RankBytes::*bytes;
};
constexpr Purpose kPurposes[] = {{"base model", &RankBytes::base},
                                 {"trainable", &RankBytes::trainable},
                                 {"gradients", &RankBytes::gradients},
                                 {"optimizer", &RankBytes::optimizer},
                                 {"activations", &RankBytes::activations_peak}};

std::string memory_row(const std::string& name, const RankBytes& bytes, uint64_t most) {
  std::string html = fmt::format("<tr><th scope=\"row\">{}</th><td><div class=\"bar\">", name);
  for (size_t i = 0; i < std::size(kPurposes); ++i)
    html += fmt::format(
        "<i style=\"width:{:.2f}%;--chip:var(--curve-{})\"></i>",
        100.0 * static_cast<double>(bytes.*kPurposes[i].bytes) / static_cast<double>(most), i);
  html += "</div></td>";
  for (const Purpose& purpose : kPurposes)
    html += fmt::format("<td class=\"number\">{}</td>", format_bytes(bytes.*purpose.bytes));
  return html + fmt::format("<td class=\"number\">{}</td></tr>\n", format_bytes(bytes.total()));
}

std::string memory_table(const RunReport& report) {
  constexpr size_t kMaxRanks = 16;
  uint64_t most = 1;
  if (report.planned) most = std::max(most, report.planned->total());
  if (!report.ranks.empty())
    most = std::max(most, report.ranks[fullest_rank(report)].bytes.total());
  std::string html = "<div class=\"wide\"><table><thead><tr><td></td><td></td>";
  for (size_t i = 0; i < std::size(kPurposes); ++i)
    html += fmt::format("<th scope=\"col\">{}{}</th>", chip(i), kPurposes[i].name);
  html += "<th scope=\"col\">sum</th></tr></thead><tbody>\n";
  if (report.planned)
    html += memory_row("estimate, rank with the highest use", *report.planned, most);
  for (size_t rank = 0; rank < std::min(report.ranks.size(), kMaxRanks); ++rank)
    html += memory_row(fmt::format("rank {}", rank), report.ranks[rank].bytes, most);
  if (report.ranks.size() > kMaxRanks) {
    const size_t fullest = fullest_rank(report);
    if (fullest >= kMaxRanks)
      html +=
          memory_row(fmt::format("rank {} (fullest)", fullest), report.ranks[fullest].bytes, most);
  }
  html += "</tbody></table></div>\n";
  if (report.ranks.size() > kMaxRanks)
    html += fmt::format("<p class=\"quiet\">run.json has all {} ranks.</p>\n", report.ranks.size());
  return html;
}

std::string memory_html(const std::vector<RunRecord>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& report = runs[i].report;
    if (!report || (report->ranks.empty() && !report->planned)) continue;
    if (runs.size() > 1) html += fmt::format("<h3>{}{}</h3>\n", chip(i), escape_html(runs[i].name));
    html += memory_table(*report);
  }
  if (html.empty()) return html;
  return "<h2 id=\"memory\">Memory by purpose</h2>\n<p class=\"quiet\">Estimated before the first "
         "step "
         "for the longest micro-batch, and measured.</p>\n" +
         html;
}

// ---- Answers

std::string answer_html(const std::string& name, const std::string& text) {
  return fmt::format("<div><small>{}</small><div class=\"text\">{}</div></div>\n",
                     escape_html(name), escape_html(text));
}

std::string answers_html(const std::vector<RunRecord>& runs) {
  std::string html;
  for (const RunRecord& run : runs) {
    if (run.answers.empty()) continue;
    if (runs.size() > 1) html += fmt::format("<h3>{}</h3>\n", escape_html(run.name));
    size_t most = 0;
    for (const AnswerFile& file : run.answers) most = std::max(most, file.answers.size());
    for (size_t row = 0; row < most; ++row) {
      html += "<div class=\"answer\">\n";
      const auto has_row = [&](const AnswerFile& file) { return row < file.answers.size(); };
      const AnswerFile::Answer& first =
          std::find_if(run.answers.begin(), run.answers.end(), has_row)->answers[row];
      html += answer_html("prompt", first.prompt);
      if (!first.reference.empty()) html += answer_html("in the record", first.reference);
      for (const AnswerFile& file : run.answers)
        if (row < file.answers.size()) html += answer_html(file.name, file.answers[row].text);
      html += "</div>\n";
    }
  }
  return html.empty() ? html : "<h2 id=\"answers\">Answers</h2>\n" + html;
}

// ---- Settings

std::vector<ComparedRow> setting_rows(const std::vector<RunRecord>& runs) {
  std::vector<ComparedRow> rows;
  std::set<std::string> seen;
  for (const RunRecord& from : runs) {
    for (const auto& [key, unused] : from.settings) {
      if (!seen.insert(key).second) continue;
      ComparedRow row{.name = key, .values = {}};
      for (const RunRecord& run : runs) row.values.push_back(run.setting(key));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string settings_html(const std::vector<RunRecord>& runs) {
  const std::vector<ComparedRow> rows = setting_rows(runs);
  std::string html = "<h2 id=\"settings\">Settings</h2>\n";
  if (runs.size() > 1)
    html += fmt::format(
        "<div class=\"tools\"><label><input id=\"differences\" type=\"checkbox\"> only "
        "those that differ ({})</label></div>\n",
        std::count_if(rows.begin(), rows.end(), differs));
  if (rows.empty()) html += "<p class=\"quiet\">There is no config.resolved.yaml.</p>\n";
  return html + (rows.empty() ? "" : comparison_table(runs, rows, /*marks_differences=*/true)) +
         "<h2 id=\"files\">Versions and files</h2>\n" +
         comparison_table(runs, side_by_side(runs, identity_of), /*marks_differences=*/true);
}

// ---- The page

/// The policy lets the page load nothing: neither files nor the network.
constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
)";
constexpr std::string_view kThemes =
    R"(<label>Colours <select id="theme"><option value="auto">of the system</option>
<option value="light">light</option><option value="dark">dark</option></select></label>
)";

std::string footer_html() {
  if (kChartLicense.empty()) return "<footer>Written by sftrun report.</footer>\n";
  return fmt::format(
      "<footer>Written by sftrun report. Charts: dygraphs.<details><summary>Licence of "
      "dygraphs</summary><pre>{}</pre></details></footer>\n",
      escape_html(kChartLicense));
}

std::string page(const std::vector<RunRecord>& runs, const std::vector<ReportedRun>& reported) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) names.push_back(run.name);
  const std::string title = escape_html(join(names, ", "));
  const std::vector<Chart> charts = make_charts(runs);
  std::string html(kHead);
  html += fmt::format("<title>{}</title>\n<style>{}{}</style>\n</head>\n<body>\n", title,
                      kChartStyle, kPageStyle);
  html += fmt::format("<header><h1>{}</h1>{}</header>\n", title, kThemes);
  html += "<h2 id=\"overview\">Overview</h2>\n";
  html += comparison_table(runs, side_by_side(runs, overview_of), /*marks_differences=*/false);
  html += findings_html(runs, reported);
  html += charts_html(charts);
  html += memory_html(runs);
  html += answers_html(runs);
  html += settings_html(runs);
  html += footer_html();
  html += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n",
                      charts_json(charts, runs));
  html += fmt::format("<script>{}</script>\n<script>{}</script>\n", kChartScript, kPageScript);
  return html + "</body>\n</html>\n";
}

/// Runs of the same name are named by their paths.
void tell_apart(std::vector<RunRecord>& runs) {
  std::multiset<std::string> names;
  for (const RunRecord& run : runs) names.insert(run.name);
  for (RunRecord& run : runs)
    if (names.count(run.name) > 1) run.name = run.directory.string();
}

}  // namespace

HtmlReport html_report(const std::vector<fs::path>& run_dirs) {
  std::vector<RunRecord> runs;
  for (const fs::path& directory : run_dirs) runs.push_back(read_run_record(directory));
  tell_apart(runs);
  HtmlReport report;
  for (const RunRecord& run : runs) {
    const MetricsColumns& training = run.metrics.training;
    report.runs.push_back({.directory = run.directory,
                           .status = run.report ? run.report->status : "",
                           .last_step = training.empty() ? 0 : training.steps.back(),
                           .findings = find_findings(run)});
  }
  report.html = page(runs, report.runs);
  return report;
}

void write_html_report(const fs::path& run_dir) {
  write_file_atomically(run_dir / "report.html", html_report({run_dir}).html);
}

}  // namespace sftrun::observe
