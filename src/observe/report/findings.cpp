#include "findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

#include "sftrun/config/objectives.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::observe {
namespace {

std::optional<double> setting_number(const RunRecord& run, const char* key) {
  const std::string text = run.setting(key);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// @pre not empty
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> finite_values(const std::vector<double>& column) {
  std::vector<double> values;
  std::copy_if(column.begin(), column.end(), std::back_inserter(values),
               [](double value) { return std::isfinite(value); });
  return values;
}

/// Of the finite values.
double sum_of_finite(const std::vector<double>& column) {
  const std::vector<double> values = finite_values(column);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// "steps 3, 17 and 5 more"
std::string step_list(const MetricsColumns& lines, const std::vector<size_t>& rows) {
  constexpr size_t kShown = 5;
  std::string text = rows.size() == 1 ? "step " : "steps ";
  for (size_t i = 0; i < std::min(rows.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", lines.steps[rows[i]]);
  return rows.size() > kShown ? text + fmt::format(" and {} more", rows.size() - kShown) : text;
}

/// An error as the terminal had it, without the end of a rank's log: "message; at place; fix: …".
std::string one_line_of(const std::string& error) {
  constexpr std::string_view kLogTitle = "last lines of its log:", kPlace = "at   ";
  std::string text;
  for (const std::string& line : split(error, '\n')) {
    std::string_view part = trim(line);
    if (part.empty() || part == kLogTitle || part.starts_with("| ")) continue;
    text.append(text.empty() ? "" : "; ");
    if (part.starts_with(kPlace)) {
      text.append("at ");
      part.remove_prefix(kPlace.size());
    }
    text.append(part);
  }
  return text;
}

class Findings {
 public:
  explicit Findings(const RunRecord& run) : run_(run), lines_(run.metrics.training) {}

  std::vector<Finding> find() && {
    status();
    not_finite();
    loss_spikes();
    slow_steps();
    rising_validation();
    idle_gpus();
    memory_above_plan();
    tokens();
    logged();
    files();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
    return std::move(found_);
  }

 private:
  template <class... T>
  void add(Severity severity, fmt::format_string<T...> text, T&&... values) {
    found_.push_back({severity, fmt::format(text, std::forward<T>(values)...)});
  }

  void status() {
    if (lines_.empty()) add(Severity::kNote, "no optimizer step has been recorded");
    if (!run_.report) return;
    const int64_t last = lines_.empty() ? 0 : lines_.steps.back();
    const std::string& status = run_.report->status;
    const std::string why = one_line_of(run_.report->error);
    if (status == "failed")
      add(Severity::kProblem, "the run failed; its last recorded step is {}{}{}", last,
          why.empty() ? "" : ": ", why);
    else if (status == kKilled)
      add(Severity::kProblem,
          "the run was killed: run.json says \"running\", but the process that started it has "
          "ended; the last recorded step is {}; the same command resumes it from its newest "
          "checkpoint",
          last);
    else if (status == "running")
      add(Severity::kNote,
          "the run is in progress, or was killed: run.json says \"running\"; the last recorded "
          "step "
          "is {}",
          last);
    else if (status != "done")
      add(why.empty() ? Severity::kNote : Severity::kWarning,
          "the run was {} at step {}{}{}; the same command resumes it",
          status.empty() ? "not finished" : status, last, why.empty() ? "" : ": ", why);
  }

  void not_finite() {
    const std::vector<size_t> losses = rows_without("loss"), norms = rows_without("grad_norm");
    if (!losses.empty())
      add(Severity::kProblem,
          "the loss has NaN or infinite values at {}: lower train.learning_rate, "
          "or look at the records of these steps",
          step_list(lines_, losses));
    if (norms.empty()) return;
    if (lines_.find("loss_scale") != nullptr)
      add(Severity::kNote,
          "{} skipped because the gradients overflowed in fp16 ({}); some are usual, "
          "and bf16 has none",
          counted(norms.size(), "step") + (norms.size() == 1 ? " was" : " were"),
          step_list(lines_, norms));
    else
      add(Severity::kProblem, "the gradient norm has NaN or infinite values at {}",
          step_list(lines_, norms));
  }

  void loss_spikes() {
    const std::vector<double>* loss = lines_.find("loss");
    // With advantages of both signs it is near 0, and says little.
    const config::ObjectiveInfo* objective =
        config::find_objective(run_.setting("train.objective"));
    if (loss == nullptr || (objective != nullptr && objective->reads_samples())) return;
    const std::vector<size_t> spikes = find_spikes(*loss);
    if (spikes.empty()) return;
    const size_t highest = *std::max_element(
        spikes.begin(), spikes.end(), [&](size_t a, size_t b) { return (*loss)[a] < (*loss)[b]; });
    const std::string others = spikes.size() == 1
                                   ? ""
                                   : fmt::format(" (of {}: {})", counted(spikes.size(), "jump"),
                                                 step_list(lines_, spikes));
    add(Severity::kWarning,
        "the loss jumps to {:.4g} at step {}{}: look at the records of that step, or lower "
        "train.learning_rate or train.max_grad_norm",
        (*loss)[highest], lines_.steps[highest], others);
  }

  void slow_steps() {
    constexpr double kFactor = 5, kMinExcessS = 0.5;
    constexpr size_t kMinSteps = 10;
    const std::vector<double>* seconds = lines_.find("step_seconds");
    if (seconds == nullptr || seconds->size() < kMinSteps) return;
    const std::vector<double> finite = finite_values(*seconds);
    const double usual = median_of(finite);
    std::vector<size_t> slow;
    double lost = 0;
    for (size_t row = 1; row < seconds->size(); ++row) {  // the first includes warm-up
      const double excess = (*seconds)[row] - usual;
      if (!((*seconds)[row] > kFactor * usual && excess > kMinExcessS)) continue;
      slow.push_back(row);
      lost += excess;
    }
    if (slow.empty()) return;
    add(Severity::kWarning,
        "{} took more than {:.0f} times the median of {}, and {} longer together ({}): another "
        "program, a slow disk or a rank that stalls",
        counted(slow.size(), "step"), kFactor, format_duration(usual), format_duration(lost),
        step_list(lines_, slow));
  }

  void rising_validation() {
    constexpr double kRise = 0.02;  // of its size: losses of rewards may be below 0
    const std::vector<double>* loss = run_.metrics.evaluation.find("eval_loss");
    if (loss == nullptr) return;
    std::vector<size_t> missing;
    for (size_t row = 0; row < loss->size(); ++row)
      if (!std::isfinite((*loss)[row])) missing.push_back(row);
    if (!missing.empty())
      add(Severity::kProblem, "the validation loss has NaN or infinite values at {}",
          step_list(run_.metrics.evaluation, missing));
    const std::vector<double> finite = finite_values(*loss);
    if (finite.empty() || !missing.empty()) return;
    const auto best = std::min_element(finite.begin(), finite.end());
    if (finite.back() - *best <= kRise * std::abs(*best)) return;
    add(Severity::kWarning,
        "the validation loss was lowest at step {} ({:.4f}) and is {:.4f} at the end: the model "
        "overfits; train for fewer epochs or keep the checkpoint of that step",
        run_.metrics.evaluation.steps[static_cast<size_t>(best - finite.begin())], *best,
        finite.back());
  }

  void idle_gpus() {
    constexpr double kMinPercent = 60;
    const auto ranks = lines_.per_rank.find("gpu_utilization");
    if (ranks == lines_.per_rank.end()) return;
    std::vector<double> means;
    for (const auto& column : ranks->second)
      if (const auto finite = finite_values(column); !finite.empty())
        means.push_back(mean_of(finite));
    if (means.empty()) return;
    const double mean = mean_of(means);
    if (mean >= kMinPercent) return;
    add(Severity::kWarning,
        "the GPUs computed {:.0f}% of the time on average: raise train.batch_size if memory "
        "allows, "
        "and look for waits for data in the logs",
        mean);
  }

  void memory_above_plan() {
    constexpr double kTolerance = 1.1;
    // For small models a ratio says nothing: the allocator takes segments of 20 MiB, and cuBLAS a
    // workspace of 32 MiB.
    constexpr uint64_t kNotable = uint64_t{64} << 20;
    if (!run_.report || !run_.report->planned || run_.report->ranks.empty()) return;
    const size_t rank = fullest_rank(*run_.report);
    const uint64_t measured = run_.report->ranks[rank].bytes.total(),
                   planned = run_.report->planned->total();
    if (measured < planned + kNotable) return;
    if (static_cast<double>(measured) <= kTolerance * static_cast<double>(planned)) return;
    add(Severity::kWarning, "rank {} used {}, {:.0f}% more than the estimate of {}", rank,
        format_bytes(measured),
        100.0 * (static_cast<double>(measured) / static_cast<double>(planned) - 1),
        format_bytes(planned));
  }

  /// The settings of packed sequences twice as long. model.max_seq_len limits them, and alone may
  /// not lengthen them: data.bin_tokens follows small data.   @pre packed_share has a value
  std::string longer_sequences() const {
    const double longer = 2 * *setting_number(run_, "data.bin_tokens");
    const double limit = setting_number(run_, "model.max_seq_len").value_or(0);
    return limit < longer ? fmt::format(
                                "set both model.max_seq_len={0:.0f} and "
                                "data.bin_tokens={0:.0f}",
                                longer)
                          : fmt::format("set data.bin_tokens={:.0f}", longer);
  }

  void tokens() {
    constexpr double kMinPacked = 0.85, kMinLabels = 0.05;
    if (const auto packed = packed_share(run_); packed && *packed < kMinPacked)
      add(Severity::kNote,
          "{:.0f}% of the positions of the packed sequences hold no token: longer packed sequences "
          "fit the records better ({})",
          100 * (1 - *packed), longer_sequences());
    const std::vector<double>*labels = lines_.find("label_tokens"), *all = lines_.find("tokens");
    if (labels == nullptr || all == nullptr) return;
    const double share = sum_of_finite(*labels) / sum_of_finite(*all);
    if (share < kMinLabels)
      add(Severity::kNote,
          "only {:.1f}% of the tokens are trained on; `sftrun preview` shows which, and why",
          100 * share);
  }

  void logged() {
    for (const LoggedWarning& warning : run_.warnings)
      add(warning.is_error ? Severity::kProblem : Severity::kWarning, "log: {}{}", warning.text,
          warning.count > 1 ? fmt::format(" ({} times{})", warning.count, last_step(warning)) : "");
    if (run_.num_more_warnings > 0)
      add(Severity::kNote, "the logs have {}; see {}/logs",
          counted(run_.num_more_warnings, "more warning"), run_.directory.string());
  }

  void files() {
    const std::vector<size_t>& bad = run_.metrics.unreadable_lines;
    if (!bad.empty())
      add(Severity::kWarning,
          "metrics.jsonl has {} that could not be read and {} left out, the first "
          "is line {}",
          counted(bad.size(), "line"), bad.size() == 1 ? "is" : "are", bad.front());
    if (run_.metrics.ends_within_line)
      add(Severity::kNote, "the last line of metrics.jsonl is incomplete and is left out");
    for (const std::string& file : run_.unreadable) add(Severity::kWarning, "cannot read {}", file);
  }

  static std::string last_step(const LoggedWarning& warning) {
    return warning.last_step ? fmt::format(", last at step {}", *warning.last_step) : "";
  }

  std::vector<size_t> rows_without(const std::string& key) const {
    std::vector<size_t> rows;
    const std::vector<double>* column = lines_.find(key);
    if (column == nullptr) return rows;
    for (size_t row = 0; row < column->size(); ++row)
      if (!std::isfinite((*column)[row])) rows.push_back(row);
    return rows;
  }

  const RunRecord& run_;
  const MetricsColumns& lines_;
  std::vector<Finding> found_;
};

}  // namespace

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kProblem:
      return "problem";
    case Severity::kWarning:
      return "warning";
    case Severity::kNote:
      return "note";
  }
  return "";
}

std::vector<size_t> find_spikes(const std::vector<double>& values) {
  constexpr size_t kWindow = 50, kMinBefore = 20;
  constexpr double kDeviations = 8, kMinShare = 0.2, kNormal = 1.4826;
  std::vector<size_t> spikes;
  std::vector<double> before;  // the last kWindow finite values
  size_t oldest = 0;
  bool is_in_spike = false;
  for (size_t row = 0; row < values.size(); ++row) {
    const double value = values[row];
    if (!std::isfinite(value)) continue;
    bool is_spike = false;
    if (before.size() >= kMinBefore) {
      const double median = median_of(before);
      std::vector<double> distances;
      for (const double one : before) distances.push_back(std::abs(one - median));
      const double deviation = kNormal * median_of(std::move(distances));
      is_spike = value > median + std::max(kDeviations * deviation, kMinShare * std::abs(median));
    }
    if (is_spike && !is_in_spike)
      spikes.push_back(row);
    else if (is_spike && value > values[spikes.back()])
      spikes.back() = row;
    is_in_spike = is_spike;
    if (before.size() < kWindow)
      before.push_back(value);
    else
      before[oldest++ % kWindow] = value;
  }
  return spikes;
}

namespace {

/// Whether each step trains on a whole epoch, which may have fewer sequences than the batch.
bool takes_whole_epochs(const MetricsColumns& training) {
  const std::vector<double>* epochs = training.find("epoch");
  return epochs != nullptr && !training.empty() &&
         epochs->back() >= static_cast<double>(training.steps.back());
}

}  // namespace

std::optional<double> packed_share(const RunRecord& run) {
  const std::vector<double>* tokens = run.metrics.training.find("tokens");
  const auto bins = setting_number(run, "train.global_batch_size"),
             bin_tokens = setting_number(run, "data.bin_tokens");
  if (run.setting("data.packing") != "true" || tokens == nullptr || !bins || !bin_tokens)
    return std::nullopt;
  const auto num_steps = static_cast<double>(finite_values(*tokens).size());
  if (takes_whole_epochs(run.metrics.training)) return std::nullopt;
  const double positions = *bins * *bin_tokens * num_steps;
  if (!(positions > 0)) return std::nullopt;
  return sum_of_finite(*tokens) / positions;
}

std::vector<Finding> find_findings(const RunRecord& run) {
  return Findings(run).find();
}

}  // namespace sftrun::observe
