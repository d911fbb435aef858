#include "sftrun/observe/run_summary.h"
#include "sftrun/core/plural.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sftrun/core/open_file.h"
#include "sftrun/core/units.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number(const Json& line, std::string_view key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

void add_step(RunSummary& summary, const Json& line, StepLoss loss) {
  if (!summary.first) summary.first = loss;
  summary.last = loss;
  summary.tokens += static_cast<int64_t>(number(line, "tokens").value_or(0));
  summary.examples += static_cast<int64_t>(number(line, "examples").value_or(0));
  summary.seconds += number(line, "step_seconds").value_or(0);
  const auto peaks = line.find("peak_memory_bytes");
  if (peaks == line.end() || !peaks->is_array()) return;
  for (const Json& bytes : *peaks) {
    if (bytes.is_number_unsigned())
      summary.peak_memory_bytes = std::max(summary.peak_memory_bytes, bytes.get<uint64_t>());
  }
}

void add_evaluation(RunSummary& summary, StepLoss loss) {
  if (!summary.first_eval) summary.first_eval = loss;
  if (!summary.best_eval || loss.loss < summary.best_eval->loss) summary.best_eval = loss;
  summary.last_eval = loss;
  summary.evals.push_back(loss);
}

void add_value(std::optional<StepLoss>& first, std::optional<StepLoss>& last, StepLoss value) {
  if (!first) first = value;
  last = value;
}

/// "reward 0.1000 at step 1, 0.9000 at step 20"
std::string ends_line(const std::string& name, const StepLoss& first, const StepLoss& last) {
  if (first.step == last.step)
    return fmt::format("{} {:.4f} at step {}", name, last.loss, last.step);
  return fmt::format("{} {:.4f} at step {}, {:.4f} at step {}", name, first.loss, first.step,
                     last.loss, last.step);
}

}  // namespace

RunSummary read_run_summary(const std::filesystem::path& metrics,
                            const config::ShownMetric& shown) {
  RunSummary summary;
  summary.shown.word = shown.word;
  const std::string of_evaluations = fmt::format("eval_{}", shown.metric);
  require_no_special_file(metrics);
  std::ifstream file(metrics);
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const auto step = static_cast<int64_t>(number(line, "step").value_or(0));
    if (const auto loss = number(line, "loss")) add_step(summary, line, {step, *loss});
    if (const auto loss = number(line, "eval_loss")) add_evaluation(summary, {step, *loss});
    if (shown.metric.empty()) continue;
    ShownValues& values = summary.shown;
    if (const auto value = number(line, shown.metric))
      add_value(values.first, values.last, {step, *value});
    if (const auto value = number(line, of_evaluations))
      add_value(values.first_eval, values.last_eval, {step, *value});
  }
  return summary;
}

std::vector<std::string> lines_of(const RunSummary& summary) {
  std::vector<std::string> lines;
  if (!summary.last) return lines;
  const auto per_second = [&](int64_t count) {
    return summary.seconds > 0 ? static_cast<double>(count) / summary.seconds : 0;
  };
  std::string speed =
      fmt::format("{} in {}: {} tokens, {:.0f} tokens/s", counted(summary.last->step, "step"),
                  format_duration(summary.seconds),
                  format_count(static_cast<uint64_t>(summary.tokens)), per_second(summary.tokens));
  if (summary.examples > 0) {
    constexpr double kHour = 3600;
    speed += fmt::format(", {} examples/hour",
                         format_count(static_cast<uint64_t>(kHour * per_second(summary.examples))));
  }
  lines.push_back(std::move(speed));
  const ShownValues& shown = summary.shown;
  if (shown.last) lines.push_back(ends_line(shown.word, *shown.first, *shown.last));
  if (shown.last_eval)
    lines.push_back(ends_line("validation " + shown.word, *shown.first_eval, *shown.last_eval));
  lines.push_back(ends_line("loss", *summary.first, *summary.last));
  if (summary.last_eval) {
    const StepLoss &first = *summary.first_eval, &best = *summary.best_eval,
                   &last = *summary.last_eval;
    std::string line = ends_line("validation loss", first, last);
    if (first.step != last.step)
      line += fmt::format("; best {:.4f} at step {}", best.loss, best.step);
    lines.push_back(std::move(line));
  }
  lines.push_back(
      fmt::format("peak memory {} per process", format_bytes(summary.peak_memory_bytes)));
  return lines;
}

}  // namespace sftrun::observe
