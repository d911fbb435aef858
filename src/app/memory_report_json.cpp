#include "memory_report.h"

namespace sftrun::app {
namespace {

using MemoryJson = nlohmann::ordered_json;

MemoryJson parts_of(const plan::MemoryPlan& plan) {
  MemoryJson parts = {{"base", plan.held.base},
                      {"trainable", plan.held.trainable},
                      {"gradients", plan.held.gradients},
                      {"optimizer", plan.held.optimizer},
                      {"gathered", plan.held.gathered},
                      {"activations", plan.step.kept},
                      {"layer_backward", plan.step.layer},
                      {"head", plan.step.head},
                      {"workspace", plan.step.workspace}};
  if (plan.step.images > 0)
    parts.update({{"images", plan.step.images},
                  {"tower_activations", plan.step.tower_kept},
                  {"tower", plan.step.tower}});
  if (plan.held.start > 0) parts["reference"] = plan.held.start;
  if (plan.step.teacher > 0)
    parts.update({{"teacher", plan.held.teacher}, {"teacher_pass", plan.step.teacher}});
  parts.update(
      {{"communication", plan.communication}, {"context", plan.context}, {"margin", plan.margin}});
  return parts;
}

MemoryJson sums_of(const plan::MemoryPlan& plan, int64_t memory_bytes) {
  return {{"peak_bytes", plan.peak()},
          {"needed_bytes", plan.needed()},
          {"tensor_bytes", plan.tensors()},
          {"fits", plan.needed() <= memory_bytes},
          {"parts", parts_of(plan)}};
}

/// {"name": "fsdp, tp 2", "strategy": "fsdp"}, and the size of each axis.
MemoryJson of_sizes(const plan::StrategySizes& sizes, const config::Axes& axes) {
  MemoryJson json = {{"name", sizes.name()}, {"strategy", config::strategy_name(sizes.strategy)}};
  for (const config::AxisRow& row : config::axis_rows()) json[row.name] = axes.*row.ranks;
  return json;
}

MemoryJson of_strategy(const StrategyRow& row, const MemoryReport& report) {
  const plan::StrategySizes& sizes = row.choice.sizes;
  if (!row.plan)
    return {{"name", sizes.name()},
            {"strategy", config::strategy_name(sizes.strategy)},
            {"refused", row.choice.refusal}};
  MemoryJson json = of_sizes(sizes, row.choice.config->parallel.axes);
  json.update(sums_of(*row.plan, report.memory_bytes()));
  return json;
}

MemoryJson of_kind(const plan::LayerKind& kind) {
  MemoryJson json = {{"kind", kind.name}, {"layers", kind.layers}};
  MemoryJson& settings = json["gradient_checkpointing"];
  for (const auto& [again, bytes] : kind.bytes)
    settings[checkpointing_word(again)] = {{"kept_bytes", bytes.kept},
                                           {"backward_bytes", bytes.in_backward}};
  return json;
}

MemoryJson of_answers(const MemoryReport& report) {
  if (!report.answers) return nullptr;
  const plan::AnswersMemory& answers = *report.answers;
  return {{"at_a_time", answers.rows},    {"tokens", answers.tokens},
          {"bytes", answers.total()},     {"cache_bytes", answers.cache},
          {"pass_bytes", answers.pass},   {"gathered_bytes", answers.gathered},
          {"peak_bytes", answers.peak()}, {"fits", report.answers_fit()}};
}

MemoryJson of_change(const MemoryReport& report) {
  if (!report.change) return nullptr;
  MemoryJson costs = MemoryJson::array();
  for (const plan::MemoryChange& change : report.change->changes) costs.push_back(change.cost);
  MemoryJson json = {{"settings", report.change->settings()}, {"costs", costs}};
  json.update(sums_of(report.change->plan, report.memory_bytes()));
  return json;
}

}  // namespace

nlohmann::ordered_json as_json(const MemoryReport& report) {
  const config::RunConfig& config = report.config;
  const plan::RunDevices& devices = report.devices.place.devices;
  MemoryJson json = sums_of(report.plan, report.memory_bytes());
  json["device"] = {{"name", report.devices.text},
                    {"kind", devices.on_gpu ? "cuda" : "cpu"},
                    {"is_here", report.devices.are_here},
                    {"memory_bytes", report.memory_bytes()},
                    {"world_size", devices.world_size}};
  json["settings"] = of_sizes(plan::own_sizes(config.parallel), config.parallel.axes);
  json["settings"].update({{"dtype", config::dtype_name(config.model.dtype)},
                           {"batch_size", config.train.batch_size.value.value()},
                           {"grad_accum", config.train.grad_accum.value.value()},
                           {"max_seq_len", config.model.max_seq_len},
                           {"tokens", plan::micro_batch_shape(config, devices).tokens}});
  if (report.images) {
    json["settings"].update({{"images", report.images->of_sequence},
                             {"image_width", report.images->width},
                             {"image_height", report.images->height}});
  }
  if (!report.images_of_data.empty()) json["settings"]["images_of_data"] = report.images_of_data;
  if (report.images || !report.images_of_data.empty()) {
    const plan::ImageShape shape = plan::micro_batch_shape(config, devices).images;
    json["settings"].update({{"tiles", shape.tiles}, {"patches", shape.patches}});
  }
  json["activations"] = MemoryJson::array();
  for (const plan::LayerKind& kind : report.kinds) json["activations"].push_back(of_kind(kind));
  json["answers"] = of_answers(report);
  json["fits"] = report.fits() && report.answers_fit();
  json["strategies"] = MemoryJson::array();
  for (const StrategyRow& row : report.strategies)
    json["strategies"].push_back(of_strategy(row, report));
  json["largest"] = {{"batch_size", report.largest_batch_size},
                     {"batch_size_of_data", report.largest_batch_size_of_data},
                     {"max_seq_len", report.longest.useful},
                     {"limited_by", report.longest.model_limits() ? "model" : "memory"}};
  json["change"] = of_change(report);
  json["error"] = {{"tensors", kTensorError},
                   {"process_bytes", process_error_bytes(devices.on_gpu)}};
  json["notes"] = report.notes;
  return json;
}

}  // namespace sftrun::app
