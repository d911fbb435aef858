#include "charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "sftrun/observe/metrics.h"

namespace sftrun::observe {
namespace {

/// A key of metrics.jsonl that has its own chart.
struct ChartOfKey {
  const char *key, *title, *unit, *about;
  bool may_be_smoothed;
};

constexpr ChartOfKey kLoss = {"loss", "Loss", "",
                              "mean over the label tokens or examples of a step", true};
constexpr ChartOfKey kChartsOfKeys[] = {
    {"grad_norm", "Gradient norm", "", "before clipping", true},
    {"learning_rate", "Learning rate", "", "", false},
    {"tokens_per_second", "Tokens per second", "count", "of all ranks, without padding", true},
    {"step_seconds", "Time of a step", "seconds", "without logging, evaluation and checkpoints",
     true},
    {"aux_loss", "Load-balancing loss", "", "before its coefficient", true},
    {"loss_scale", "Loss scale", "count", "of fp16", false}};
constexpr ChartOfKey kMemory = {"peak_memory_bytes", "Peak memory", "bytes",
                                "of each rank: on GPUs allocated, on CPUs resident", false};
constexpr ChartOfKey kUtilization = {"gpu_utilization", "GPU utilization", "percent",
                                     "share of the time in which a kernel ran", true};
constexpr ChartOfKey kRankLosses = {"loss_per_rank", "Loss of each rank", "",
                                    "mean over the rank's own terms", true};
constexpr ChartOfKey kMemoryInUse = {"memory_used_bytes", "Memory in use", "bytes",
                                     "of each rank: on GPUs by all processes, on CPUs resident",
                                     false};
constexpr ChartOfKey kCpuUtilization = {"cpu_utilization", "CPU utilization", "percent",
                                        "of each rank; 200% is two processors", true};
constexpr ChartOfKey kStepParts = {"step_parts", "Where the time of a step goes", "seconds",
                                   "rank 0; communication: waits for other ranks", false};
constexpr ChartOfKey kAnswers = {"answers", "Answers", "",
                                 "scores of generated answers, and token accuracy; of several runs "
                                 "ROUGE-L",
                                 false};
constexpr std::pair<const char*, const char*> kScores[] = {
    {"eval_rouge_l", "ROUGE-L"},
    {"eval_rouge1", "ROUGE-1"},
    {"eval_rouge2", "ROUGE-2"},
    {"eval_exact_match", "exact match"},
    {"eval_token_accuracy", "token accuracy"}};
/// Keys without a chart: they follow from others or are known elsewhere.
constexpr const char* kNotDrawn[] = {"epoch",        "tokens",       "examples",
                                     "label_tokens", "eval_seconds", "eval_perplexity"};

Chart chart_for(const ChartOfKey& key) {
  return {.id = key.key,
          .title = key.title,
          .about = key.about,
          .unit = key.unit,
          .may_be_smoothed = key.may_be_smoothed};
}

class ChartMaker {
 public:
  explicit ChartMaker(const std::vector<RunRecord>& runs) : runs_(runs) {}

  std::vector<Chart> make() && {
    losses();
    answers();
    for (const ChartOfKey& key : kChartsOfKeys) plain(key);
    memory();
    step_parts();
    per_rank(kMemoryInUse);
    per_rank(kUtilization);
    per_rank(kCpuUtilization);
    if (runs_.size() == 1) per_rank(kRankLosses);
    others();
    std::erase_if(charts_, [](const Chart& chart) { return chart.curves.empty(); });
    return std::move(charts_);
  }

 private:
  /// @param kind what the curve shows, if its chart has several of a run
  std::string label(size_t run, const std::string& kind) const {
    if (runs_.size() == 1) return kind;
    return kind.empty() ? runs_[run].name : fmt::format("{}: {}", runs_[run].name, kind);
  }

  void add(Chart& chart, size_t run, const std::string& kind, const MetricsColumns& lines,
           const std::vector<double>* values, bool has_dots = false) const {
    if (values == nullptr || values->empty()) return;
    chart.curves.push_back({.run = run,
                            .label = label(run, kind),
                            .steps = lines.steps,
                            .values = *values,
                            .has_dots = has_dots});
  }

  void losses() {
    Chart chart = chart_for(kLoss);
    for (size_t run = 0; run < runs_.size(); ++run) {
      const MetricsTable& metrics = runs_[run].metrics;
      add(chart, run, "training", metrics.training, metrics.training.find("loss"));
      add(chart, run, "validation", metrics.evaluation, metrics.evaluation.find("eval_loss"), true);
      add_losses_of_sets(chart, run);
    }
    charts_.push_back(std::move(chart));
  }

  /// Of several validation sets, each by its name.
  void add_losses_of_sets(Chart& chart, size_t run) const {
    constexpr std::string_view kBefore = "eval_losses/";
    const MetricsColumns& lines = runs_[run].metrics.evaluation;
    for (const auto& [key, column] : lines.values)
      if (key.starts_with(kBefore))
        add(chart, run, "validation " + key.substr(kBefore.size()), lines, &column, true);
  }

  void answers() {
    Chart chart = chart_for(kAnswers);
    for (size_t run = 0; run < runs_.size(); ++run) {
      const MetricsColumns& lines = runs_[run].metrics.evaluation;
      for (const auto& [key, name] : kScores)
        if (runs_.size() == 1 || std::string_view(key) == "eval_rouge_l")
          add(chart, run, runs_.size() == 1 ? name : "", lines, lines.find(key), true);
    }
    charts_.push_back(std::move(chart));
  }

  void plain(const ChartOfKey& key) {
    Chart chart = chart_for(key);
    for (size_t run = 0; run < runs_.size(); ++run)
      add(chart, run, runs_.size() == 1 ? key.title : "", runs_[run].metrics.training,
          runs_[run].metrics.training.find(key.key));
    charts_.push_back(std::move(chart));
  }

  static std::string key_of_part(std::string_view part) { return std::string(part) + "_seconds"; }

  /// Of one run: stacks of several cannot be compared.
  void step_parts() {
    if (runs_.size() != 1) return;
    Chart chart = chart_for(kStepParts);
    chart.is_stacked = true;
    const MetricsColumns& training = runs_[0].metrics.training;
    for (const auto& [part, seconds] : named_parts({}))
      add(chart, 0, std::string(part), training, training.find(key_of_part(part)));
    charts_.push_back(std::move(chart));
  }

  /// A curve for each rank; of several runs one each, the highest of its ranks.
  void per_rank(const ChartOfKey& key) {
    Chart chart = chart_for(key);
    for (size_t run = 0; run < runs_.size(); ++run) add_ranks(chart, run);
    if (runs_.size() > 1) chart.about += chart.about.empty() ? "highest rank" : "; highest rank";
    charts_.push_back(std::move(chart));
  }

  void add_ranks(Chart& chart, size_t run) const {
    const MetricsColumns& lines = runs_[run].metrics.training;
    const auto found = lines.per_rank.find(chart.id);
    if (found == lines.per_rank.end()) return;
    const auto& ranks = found->second;
    if (runs_.size() > 1) {
      const std::vector<double> highest = highest_of(ranks);
      return add(chart, run, "", lines, &highest);
    }
    constexpr const char* kSummaries[] = {"lowest rank", "median rank", "highest rank"};
    const bool is_summary = lines.num_ranks.at(chart.id) > MetricsColumns::kMaxRanks;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      add(chart, run, is_summary && rank < 3 ? kSummaries[rank] : fmt::format("rank {}", rank),
          lines, &ranks[rank]);
  }

  static std::vector<double> highest_of(const std::vector<std::vector<double>>& ranks) {
    std::vector<double> highest = ranks.front();
    for (const auto& column : ranks)
      for (size_t row = 0; row < highest.size(); ++row)
        highest[row] = std::fmax(highest[row], column[row]);  // ignores NaN
    return highest;
  }

  /// On a CPU the peak is the process's resident size, which the estimate is not about.
  void memory() {
    per_rank(kMemory);
    for (size_t run = 0; run < runs_.size(); ++run) {
      const auto& report = runs_[run].report;
      const bool is_on_gpu = runs_[run].metrics.training.per_rank.contains(kUtilization.key);
      if (report && report->planned && is_on_gpu)
        charts_.back().levels.push_back({.run = run,
                                         .label = label(run, "estimate"),
                                         .value = static_cast<double>(report->planned->total())});
    }
  }

  /// What the objective reports, as "rewards/margins", with the evaluation's values.
  void others() {
    std::set<std::string> keys;
    for (const RunRecord& run : runs_) {
      for (const auto& [key, column] : run.metrics.training.values) keys.insert(key);
      constexpr const char* kAccuracy = "token_accuracy";  // of evaluations only
      if (run.metrics.evaluation.find(std::string("eval_") + kAccuracy)) keys.insert(kAccuracy);
    }
    for (const char* drawn : kNotDrawn) keys.erase(drawn);
    keys.erase(kLoss.key);
    for (const auto& [part, seconds] : named_parts({})) keys.erase(key_of_part(part));
    for (const ChartOfKey& drawn : kChartsOfKeys) keys.erase(drawn.key);
    for (const std::string& key : keys) {
      Chart chart{.id = key, .title = key, .may_be_smoothed = true};
      for (size_t run = 0; run < runs_.size(); ++run) {
        const MetricsTable& metrics = runs_[run].metrics;
        add(chart, run, "training", metrics.training, metrics.training.find(key));
        add(chart, run, "validation", metrics.evaluation, metrics.evaluation.find("eval_" + key),
            true);
      }
      charts_.push_back(std::move(chart));
    }
  }

  const std::vector<RunRecord>& runs_;
  std::vector<Chart> charts_;
};

/// Six digits are more than a screen shows.
std::string number_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
}

template <class T, class Format>
std::string json_array(const std::vector<T>& values, Format&& format) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? "," : "") + format(values[i]);
  return text + "]";
}

/// JSON in which "</script>" cannot appear.
std::string script_json(const std::string& text) {
  std::string json = nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                               nlohmann::json::error_handler_t::replace);
  std::string safe;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&')
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      safe += c;
  }
  return safe;
}

std::string curve_json(const Curve& curve) {
  const std::vector<size_t> rows = rows_to_draw(curve.values);
  return fmt::format(R"({{"run":{},"label":{},"dots":{},"rows":{},"x":{},"y":{}}})", curve.run,
                     script_json(curve.label), curve.has_dots, curve.values.size(),
                     json_array(rows, [&](size_t row) { return std::to_string(curve.steps[row]); }),
                     json_array(rows, [&](size_t row) { return number_text(curve.values[row]); }));
}

std::string level_json(const Level& level) {
  return fmt::format(R"({{"run":{},"label":{},"y":{}}})", level.run, script_json(level.label),
                     number_text(level.value));
}

/// Tokens and hours at some steps, for the other horizontal axes; page.js interpolates.
std::string run_json(const RunRecord& run) {
  constexpr size_t kMaxPoints = 500;
  const MetricsColumns& lines = run.metrics.training;
  const std::vector<double>*tokens = lines.find("tokens"), *seconds = lines.find("step_seconds");
  std::vector<double> steps = {0}, all_tokens = {0}, hours = {0};
  double sum_tokens = 0, sum_seconds = 0;
  const size_t every = std::max<size_t>(1, lines.steps.size() / kMaxPoints);
  const auto value = [](const std::vector<double>* column, size_t row) {
    return column != nullptr && std::isfinite((*column)[row]) ? (*column)[row] : 0.0;
  };
  for (size_t row = 0; row < lines.steps.size(); ++row) {
    sum_tokens += value(tokens, row);
    sum_seconds += value(seconds, row);
    if (row % every != 0 && row + 1 != lines.steps.size()) continue;
    steps.push_back(static_cast<double>(lines.steps[row]));
    all_tokens.push_back(sum_tokens);
    hours.push_back(sum_seconds / 3600);
  }
  return fmt::format(R"({{"name":{},"steps":{},"tokens":{},"hours":{}}})", script_json(run.name),
                     json_array(steps, [](double v) { return fmt::format("{:.0f}", v); }),
                     json_array(all_tokens, [](double v) { return fmt::format("{:.0f}", v); }),
                     json_array(hours, number_text));
}

}  // namespace

std::vector<Chart> make_charts(const std::vector<RunRecord>& runs) {
  return ChartMaker(runs).make();
}

std::vector<size_t> rows_to_draw(const std::vector<double>& values) {
  std::vector<size_t> rows;
  const size_t num_rows = values.size();
  if (num_rows <= 2 * kDrawnRanges) {
    for (size_t row = 0; row < num_rows; ++row) rows.push_back(row);
    return rows;
  }
  for (size_t range = 0; range < kDrawnRanges; ++range) {
    const size_t begin = range * num_rows / kDrawnRanges,
                 end = (range + 1) * num_rows / kDrawnRanges;
    size_t lowest = end, highest = end;
    for (size_t row = begin; row < end; ++row) {
      if (!std::isfinite(values[row])) continue;
      if (lowest == end || values[row] < values[lowest]) lowest = row;
      if (highest == end || values[row] > values[highest]) highest = row;
    }
    if (lowest == end) {  // no value: the line has a gap
      rows.push_back(begin);
      continue;
    }
    rows.push_back(std::min(lowest, highest));
    if (lowest != highest) rows.push_back(std::max(lowest, highest));
  }
  if (rows.back() != num_rows - 1) rows.push_back(num_rows - 1);
  return rows;
}

std::string charts_json(const std::vector<Chart>& charts, const std::vector<RunRecord>& runs) {
  const auto chart_json = [](const Chart& chart) {
    return fmt::format(R"({{"id":{},"unit":{},"smooth":{},"stacked":{},"curves":{},"levels":{}}})",
                       script_json(chart.id), script_json(chart.unit), chart.may_be_smoothed,
                       chart.is_stacked, json_array(chart.curves, curve_json),
                       json_array(chart.levels, level_json));
  };
  return fmt::format(R"({{"runs":{},"charts":{}}})", json_array(runs, run_json),
                     json_array(charts, chart_json));
}

}  // namespace sftrun::observe
