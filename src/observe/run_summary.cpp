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

std::optional<double> number(const Json& line, const char* key) {
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

}  // namespace

RunSummary read_run_summary(const std::filesystem::path& metrics) {
  RunSummary summary;
  require_no_special_file(metrics);
  std::ifstream file(metrics);
  for (std::string text; std::getline(file, text);) {
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const auto step = static_cast<int64_t>(number(line, "step").value_or(0));
    if (const auto loss = number(line, "loss")) add_step(summary, line, {step, *loss});
    if (const auto loss = number(line, "eval_loss")) add_evaluation(summary, {step, *loss});
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
  const StepLoss &begin = *summary.first, &end = *summary.last;
  lines.push_back(begin.step == end.step ? fmt::format("loss {:.4f} at step {}", end.loss, end.step)
                                         : fmt::format("loss {:.4f} at step {}, {:.4f} at step {}",
                                                       begin.loss, begin.step, end.loss, end.step));
  if (summary.last_eval) {
    const StepLoss &first = *summary.first_eval, &best = *summary.best_eval,
                   &last = *summary.last_eval;
    lines.push_back(first.step == last.step
                        ? fmt::format("validation loss {:.4f} at step {}", last.loss, last.step)
                        : fmt::format("validation loss {:.4f} at step {}, {:.4f} at step {}; best "
                                      "{:.4f} at step {}",
                                      first.loss, first.step, last.loss, last.step, best.loss,
                                      best.step));
  }
  lines.push_back(
      fmt::format("peak memory {} per process", format_bytes(summary.peak_memory_bytes)));
  return lines;
}

}  // namespace sftrun::observe
