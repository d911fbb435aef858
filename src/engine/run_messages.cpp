#include "run_messages.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report.h"
#include "sftrun/config/answers_line.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/small_data.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/observe/run_summary.h"
#include "sftrun/plan/optimizer_notes.h"
#include "sftrun/plan/parts.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/tower.h"
#include "sftrun/train/optimizer.h"

namespace sftrun::engine {
namespace {

/// What a step trains on: "1 pair", "8 packed sequences of 512 tokens"
std::string batch_words(const config::RunConfig& config, int64_t count) {
  if (!config.data.packing) return counted(count, config.train.objective_info().example_word());
  return fmt::format("{} of {} tokens", counted(count, "packed sequence"),
                     config.data.bin_tokens.value.value_or(config.model.max_seq_len));
}

void log_model(const config::RunConfig& config, const model::Decoder& decoder,
               const Compute& compute, const config::BaseRecord* base_record) {
  const config::Axes& axes = config.parallel.axes;
  const bool is_whole = !axes.divides_model() && !axes.shards_weights();
  log::info("model {} ({}, {}{}), backend {}, {} on {}, {}", config.model.name,
            decoder.arch().family, counted(decoder.arch().num_layers, "layer"),
            base_record != nullptr ? fmt::format("; frozen, in {}: {}{}", base_record->words(),
                                                 is_whole ? "" : "this device keeps ",
                                                 format_bytes(decoder.base_bytes()))
                                   : "",
            backend_name(config.tuning.backend), dtype_name(compute.dtype),
            device_name(compute.device), counted(at::get_num_threads(), "thread"));
}

/// The parts of a model that reads images or features.
void log_parts(const config::RunConfig& config, model::Decoder& decoder) {
  ByPart<int64_t> trained = {};
  for (const layers::Parameter& parameter : decoder.parameters().parameters())
    trained[parameter.part] += parameter.numel;
  const plan::TowerUse use{.is_loaded = decoder.options().with_vision};
  if (config.parallel.axes.divides_model())  // this rank has parts of the matrices, or some layers
    trained = plan::part_trained(decoder.arch(), config.tuning, use);
  const std::string parts = plan::describe_parts(decoder.arch(), config, use, trained);
  if (!parts.empty()) log::info("{}", parts);
}

/// Of the text model and, if it is loaded, the image side.
uint64_t num_model_parameters(const model::Decoder& decoder) {
  const plan::TowerUse use{.is_loaded = decoder.options().with_vision};
  int64_t values = 0;
  for (const spec::TensorSpec& tensor :
       plan::with_tower(spec::tensor_specs(decoder.arch()), decoder.arch(), use))
    values += tensor.numel();
  return static_cast<uint64_t>(values);
}

}  // namespace

std::string trainable_line(uint64_t trained, uint64_t of_model, bool is_frozen, size_t num_tensors,
                           const std::string& mode) {
  const uint64_t all = is_frozen ? trained + of_model : of_model;
  return fmt::format("trainable parameters: {} of {} ({:.2f}%) in {} ({})", format_count(trained),
                     format_count(all),
                     100 * static_cast<double>(trained) / static_cast<double>(all),
                     counted(num_tensors, "tensor"), mode);
}

std::string steps_line(const config::RunConfig& config, const RunSize& size) {
  const config::TrainConfig& train = config.train;
  const config::Axes& axes = config.parallel.axes;
  const int64_t parts = axes.data_parts();
  const std::string devices =
      axes.divides_model() ? fmt::format("{} of {}", counted(parts, axes.part_word()),
                                         counted(axes.devices_of_part(),
                                                 axes.has_stages_alone() ? "stage" : "device"))
                           : fmt::format("world_size {}", parts);
  const int64_t asked = *train.global_batch_size.value;
  const bool is_cut = size.bins_in_epoch > 0 && size.bins_in_epoch < asked;
  const std::string batch = is_cut ? fmt::format("{}; an epoch has {}, which are one step", asked,
                                                 batch_words(config, size.bins_in_epoch))
                                   : batch_words(config, asked) + " per step";
  return fmt::format("{}: batch_size {} x grad_accum {} x {} = {}",
                     counted(size.total_steps, "step"), *train.batch_size.value,
                     *train.grad_accum.value, devices, batch);
}

std::optional<std::string> large_batch_warning(const config::RunConfig& config,
                                               const RunSize& size) {
  if (!size.asks_for_batch) return std::nullopt;
  return data::large_batch_warning(config, config.train, size.bins_in_epoch, /*is_exact=*/true);
}

void log_start(const config::RunConfig& config, model::Decoder& decoder, const Compute& compute,
               const config::BaseRecord* base_record, const RunSize& size) {
  log_model(config, decoder, compute, base_record);
  log_parts(config, decoder);
  const model::BaseForm& base = decoder.options().base;
  if (const std::string idle =
          plan::idle_quant_keys(config.tuning, base.keep_stored && !base.quant);
      !idle.empty())
    log::warn("{}", idle);
  if (const std::string idle = plan::idle_optimizer_keys(config, decoder.arch()); !idle.empty())
    log::warn("{}", idle);
  const layers::ParameterStore& store = decoder.parameters();
  log::info("{}",
            trainable_line(static_cast<uint64_t>(store.numel()), num_model_parameters(decoder),
                           base_record != nullptr, store.parameters().size(),
                           config::to_json(config)["tuning"]["mode"].get<std::string>()));
  log::info("{}", steps_line(config, size));
  if (const std::string answers = config::answers_line(config.train); !answers.empty())
    log::info("{}", answers);
  if (const auto large = large_batch_warning(config, size)) log::warn("{}", *large);
  if (config.parallel.axes.has_stages())
    log::info("{}", plan::describe_stages(decoder.arch(), config));
  if (const auto few = data::few_steps_warning(config, size.total_steps, size.learns_nothing))
    log::warn("{}", *few);
  if (const auto idle =
          config::early_stopping_warning(config.train, size.total_steps, size.num_evaluations))
    log::warn("{}", *idle);
  if (const auto waiting = plan::waiting_stages_warning(config)) log::warn("{}", *waiting);
  if (base_record != nullptr && !config.train.objective_info().embeds()) log_vllm_advice(decoder);
  if (config.train.loraplus_lr_ratio && decoder.embedding().lora) {
    log::warn(
        "with LoRA+ the learning rate of the embedding's adapter is at most {:g}, as in peft; "
        "without train.loraplus_lr_ratio it is the same as for the others",
        train::kLoraPlusEmbeddingRate);
  }
}

std::string memory_line(const observe::RunReport& report) {
  constexpr size_t kMaxShown = 8;
  const uint64_t planned = report.planned->total();
  const auto used = [&](size_t rank) {
    const uint64_t bytes = report.ranks[rank].bytes.total();
    return fmt::format("rank {} used {} ({:.0f}%)", rank, format_bytes(bytes),
                       100 * static_cast<double>(bytes) / static_cast<double>(planned));
  };
  std::vector<std::string> parts;
  if (report.ranks.size() <= kMaxShown) {
    for (size_t rank = 0; rank < report.ranks.size(); ++rank) parts.push_back(used(rank));
  } else {
    const auto [least, most] = std::minmax_element(
        report.ranks.begin(), report.ranks.end(),
        [](const auto& a, const auto& b) { return a.bytes.total() < b.bytes.total(); });
    for (const auto& end : {most, least})
      parts.push_back(used(static_cast<size_t>(end - report.ranks.begin())));
    parts.push_back(fmt::format("the other {} are between", report.ranks.size() - 2));
  }
  return fmt::format("peak memory for tensors: {} planned; {}", format_bytes(planned),
                     join(parts, ", "));
}

namespace {

const char* where_limit_is(bool is_unwritten, bool is_adapter) {
  if (is_unwritten)
    return "sftrun uses it with this result (sftrun_images.json); the image processors of "
           "transformers and vLLM have no such limit, so give them images of that size";
  return is_adapter
             ? "in the adapter's files of the image processor, for AutoProcessor; vLLM reads "
               "those of the base, so serve the merged model there"
             : "in the model's files of the image processor, which transformers and vLLM "
               "read";
}

}  // namespace

std::vector<std::string> lines_of_limits(const images::ImageCaps& caps,
                                         const std::filesystem::path& model, bool is_adapter) {
  if (!caps.any()) return {};
  const images::CapUse unwritten = images::unwritten_limits(images::read_processor(model), caps);
  std::vector<std::string> lines;
  const auto add = [&](images::ImageCaps limit, bool is_unwritten) {
    if (limit.any())
      lines.push_back(
          fmt::format("{}: {}", images::words_of(limit), where_limit_is(is_unwritten, is_adapter)));
  };
  add({.max_pixels = caps.max_pixels}, unwritten.max_pixels);
  add({.longest_edge = caps.longest_edge}, unwritten.longest_edge);
  return lines;
}

void log_result(const exporting::RunResult& result, const config::ShownMetric& shown,
                const config::BaseRecord* base_record, model::Decoder& decoder,
                const SkippedRecords& skipped, bool leaves_template_unused) {
  for (const std::string& line :
       observe::lines_of(observe::read_run_summary(result.run_dir / "metrics.jsonl", shown)))
    log::info("{}", line);
  if (skipped.bad > 0)
    log::info("{} left out of the training data (data.bad_records: skip)",
              counted(skipped.bad, "bad record"));
  if (skipped.lost > 0)
    log::info(
        "{} trained without labels, as images or features could not be read "
        "(data.bad_records: skip)",
        counted(skipped.lost, "record"));
  log::info("{}: {}", result.adapter ? "adapter" : "model", result.target().string());
  if (decoder.arch().score || result.embedding)
    log::info("  try it: sftrun score {} {} --input FILE --output FILE",
              result.adapter ? "--adapter" : "--model", shell_word(result.run_dir.string()));
  else
    log::info("  try it: sftrun generate {} {}{}{} --prompt \"…\"",
              result.adapter ? "--adapter" : "--model", shell_word(result.run_dir.string()),
              leaves_template_unused ? " --no-chat" : "",
              decoder.options().with_vision ? " --image FILE" : "");
  if (result.embedding)
    log::info("  sentence-transformers: SentenceTransformer({})",
              nlohmann::json(result.target().string()).dump());
  for (const std::string& line :
       lines_of_limits(result.image_caps, result.base_path, result.adapter.has_value()))
    log::info("  {}", line);
  if (!result.template_variables.empty()) {
    log::info(
        "  chat_template_kwargs of this run: {} (sftrun_chat.json; other programs need them in "
        "each request)",
        excerpt(result.template_variables.dump()));
  }
  if (!result.adapter) return;
  log::info("  base precision during training: {}", base_record->words());
  for (const std::string& line :
       reader_lines(*result.adapter, adapted_modules(decoder), *base_record, result.base,
                    result.base_path, result.target(), result.embedding.has_value()))
    log::info("  {}", line);
}

}  // namespace sftrun::engine
