#include "sftrun/observe/metrics.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;

struct LineKind {
  int64_t step = 0;
  bool is_evaluation = false;
};

/// nullopt for lines that are not of a metrics file.
std::optional<LineKind> kind_of(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return LineKind{step->get<int64_t>(), is_evaluation_line(json)};
}

}  // namespace

std::array<std::pair<std::string_view, double>, 6> named_parts(const StepParts& parts) {
  return {{{"data", parts.data},
           {"forward", parts.forward},
           {"backward", parts.backward},
           {"communication", parts.communication},
           {"optimizer", parts.optimizer},
           {"other", parts.other}}};
}

void MetricsWriter::write(const TrainMetrics& metrics) {
  if (!file_.is_open()) return;
  Json json = {{"step", metrics.step}, {"epoch", metrics.epoch}, {"loss", metrics.loss}};
  for (const auto& [name, value] : metrics.objective) json[name] = value;
  if (metrics.aux_loss) json["aux_loss"] = *metrics.aux_loss;
  if (metrics.loss_scale) json["loss_scale"] = *metrics.loss_scale;
  json.update({{"grad_norm", metrics.grad_norm}, {"learning_rate", metrics.learning_rate}});
  for (const auto& [name, rate] : metrics.part_rates) json[name] = rate;
  json.update({{"label_tokens", metrics.label_tokens},
               {"tokens", metrics.tokens},
               {"examples", metrics.examples},
               {"tokens_per_second", metrics.tokens_per_second},
               {"step_seconds", metrics.step_seconds},
               {"peak_memory_bytes", metrics.peak_memory_bytes},
               {"loss_per_rank", metrics.loss_per_rank},
               {"gpu_utilization", metrics.gpu_utilization},
               {"memory_used_bytes", metrics.memory_used_bytes},
               {"cpu_utilization", metrics.cpu_utilization}});
  if (metrics.parts) {
    for (const auto& [name, seconds] : named_parts(*metrics.parts))
      json[std::string(name) + "_seconds"] = seconds;
  }
  file_.append(json.dump());
}

void MetricsWriter::write(const EvalMetrics& metrics) {
  if (file_.is_open()) file_.append(metrics.to_json().dump());
}

Json EvalMetrics::to_json() const {
  Json json = {{"step", step}};
  if (has_loss)
    json.update(
        {{"eval_loss", eval_loss}, {"eval_perplexity", nullptr}, {"eval_rouge_l", nullptr}});
  json["eval_seconds"] = eval_seconds;
  if (eval_perplexity) json["eval_perplexity"] = *eval_perplexity;
  for (const auto& [name, value] : objective) json["eval_" + name] = value;
  for (const auto& [name, loss] : losses) json["eval_losses"][name] = loss;
  if (!answers) return json;
  json["eval_rouge_l"] = answers->rouge_l;
  json["eval_rouge1"] = answers->rouge1;
  json["eval_rouge2"] = answers->rouge2;
  json["eval_exact_match"] = answers->exact_match;
  json["eval_answers"] = answers->num_answers;
  json["eval_answer_seconds"] = answers->seconds;
  return json;
}

std::optional<double> EvalMetrics::value_of(const std::string& name) const {
  const Json json = to_json();
  if (const auto found = json.find(name); found != json.end() && found->is_number())
    return found->get<double>();
  std::vector<std::string> sets;
  for (const auto& [set, loss] : losses) sets.push_back(set);
  const std::vector<std::string> named = config::sets_of_loss(name, sets);
  for (const auto& [set, loss] : losses)
    if (named.size() == 1 && named.front() == set) return loss;
  return std::nullopt;
}

std::vector<std::string> names_of_values(const EvalMetrics& metrics) {
  std::vector<std::string> names;
  const Json json = metrics.to_json();
  for (const auto& [name, value] : json.items()) {
    const bool is_measure = name.starts_with("eval_") && !name.ends_with("seconds") &&
                            name != "eval_answers" && value.is_number();
    if (is_measure) names.push_back(name);
  }
  std::vector<std::string> sets;
  for (const auto& [set, loss] : metrics.losses) sets.push_back(set);
  for (std::string& loss : config::losses_of_sets(sets)) names.push_back(std::move(loss));
  return names;
}

std::optional<int64_t> truncate_metrics_to_step(const std::filesystem::path& path, int64_t step,
                                                bool keeps_evaluation) {
  const auto is_kept = [&](const LineKind& line) {
    return line.step < step || (line.step == step && (keeps_evaluation || !line.is_evaluation));
  };
  if (!leads_to_file(path)) return std::nullopt;
  const std::string text = read_text_file(path);
  std::optional<int64_t> last;
  std::string kept;
  kept.reserve(text.size());
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // incomplete: every complete line ends with a newline
    const std::string_view line(text.data() + begin, end - begin);
    const auto kind = kind_of(line);
    if (!kind && end + 1 < text.size()) {
      throw DataError("not a line of metrics", fmt::format("{}:{}", path.string(), number),
                      "move the file away; it is not this program's, or was edited");
    }
    if (kind && is_kept(*kind)) {
      kept.append(line).push_back('\n');
      last = kind->step;
    }
    begin = end + 1;
  }
  if (kept.size() != text.size()) shrink_file(path, text, kept);
  return last;
}

}  // namespace sftrun::observe
