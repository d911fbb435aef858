#include "sftrun/observe/metrics.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sftrun/core/error.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;

/// The step of a metrics line; nullopt for other lines.
std::optional<int64_t> step_of(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
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
  json.update({{"grad_norm", metrics.grad_norm},
               {"learning_rate", metrics.learning_rate},
               {"label_tokens", metrics.label_tokens},
               {"tokens", metrics.tokens},
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
  if (!file_.is_open()) return;
  Json json = {{"step", metrics.step},
               {"eval_loss", metrics.eval_loss},
               {"eval_perplexity", nullptr},
               {"eval_rouge_l", nullptr},
               {"eval_seconds", metrics.eval_seconds}};
  if (metrics.eval_perplexity) json["eval_perplexity"] = *metrics.eval_perplexity;
  for (const auto& [name, value] : metrics.objective) json["eval_" + name] = value;
  for (const auto& [name, loss] : metrics.losses) json["eval_losses"][name] = loss;
  if (metrics.eval_rouge_l) json["eval_rouge_l"] = *metrics.eval_rouge_l;
  file_.append(json.dump());
}

void truncate_metrics_to_step(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text_file(path);
  std::string kept;
  kept.reserve(text.size());
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // incomplete: every complete line ends with a newline
    const std::string_view line(text.data() + begin, end - begin);
    const auto line_step = step_of(line);
    if (!line_step && end + 1 < text.size()) {
      throw DataError("not a line of metrics", fmt::format("{}:{}", path.string(), number),
                      "move the file away; it is not this program's, or was edited");
    }
    if (line_step && *line_step <= step) kept.append(line).push_back('\n');
    begin = end + 1;
  }
  if (kept.size() != text.size()) shrink_file(path, text, kept);
}

}  // namespace sftrun::observe
