#include "run_check.h"

#include <malloc.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "run_forecast.h"
#include "sftrun/config/trained_rows.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/data_problems.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/image_input.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/optimizer_notes.h"
#include "sftrun/plan/parts.h"
#include "sftrun/plan/quant_notes.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/projectors.h"
#include "sftrun/weights/vllm_adapter.h"
#include "sftrun/weights/weights_summary.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace fs = std::filesystem;
namespace {

/// Also weights in formats that are refused, so that a dry run reports them.
bool has_weight_files(const fs::path& directory) {
  constexpr std::array kFiles = {"model.safetensors", "model.safetensors.index.json",
                                 "pytorch_model.bin", "pytorch_model.bin.index.json"};
  return std::any_of(kFiles.begin(), kFiles.end(),
                     [&](const char* name) { return has_optional_file(directory / name); });
}

bool may_have_weights(const fs::path& model) {
  return !is_folder(model) || has_weight_files(model);
}

spec::ArchSpec arch_of_checkpoint(const fs::path& model) {
  spec::ArchSpec arch = weights::Checkpoint::open(model)->arch();
  return_freed_memory();
  return arch;
}

/// Of the parts that train.
std::vector<spec::TensorSpec> tensors_of(const spec::ArchSpec& arch, const TrainedParts& parts) {
  std::vector<spec::TensorSpec> tensors = plan::with_tower(
      spec::tensor_specs(arch), arch, {.is_loaded = arch.vision && parts.has_image_side()});
  std::erase_if(tensors, [&](const spec::TensorSpec& tensor) { return !parts.has(tensor.part); });
  return tensors;
}

int64_t sum_of_parts(const ByPart<int64_t>& parts) {
  int64_t sum = 0;
  for (const ModelPart part : kModelParts) sum += parts[part];
  return sum;
}

/// The model, and a line about its parts if it reads more than texts.
std::vector<std::string> text_of(const config::RunConfig& config, const spec::ArchSpec& arch,
                                 const plan::TowerUse& use) {
  const ByPart<int64_t> trained = plan::part_trained(arch, config.tuning, use);
  const auto count = [](const ByPart<int64_t>& parts) {
    return format_count(static_cast<uint64_t>(sum_of_parts(parts)));
  };
  std::vector<std::string> lines = {fmt::format(
      "model: {}, {}, {} parameters, {} of them trainable", arch.family,
      counted(arch.num_layers, "layer"), count(plan::part_parameters(arch, use)), count(trained))};
  const std::string parts = plan::describe_parts(arch, config, use, trained);
  if (!parts.empty()) lines.push_back(parts);
  return lines;
}

std::string text_of(const data::DatasetTrial& trial, config::HeadKind head) {
  const std::string_view of_texts = config::trained_of_texts(head);
  return fmt::format(
      "data: {}{}: {} records; {}: {}, {} tokens, {} trained on, longest {}", trial.name,
      trial.num_files == 1 ? "" : fmt::format(" ({} files)", trial.num_files),
      data::name_of(trial.format),
      trial.is_whole
          ? fmt::format("all {}", trial.stats.num_records)
          : fmt::format("the first {} of about {}", trial.stats.num_records,
                        format_count(static_cast<uint64_t>(trial.num_records_estimated))),
      counted(trial.stats.num_examples, "example"),
      format_count(static_cast<uint64_t>(trial.stats.num_tokens)),
      of_texts.empty() ? format_count(static_cast<uint64_t>(trial.stats.num_label_tokens))
                       : fmt::format("{}", of_texts),
      trial.stats.longest);
}

/// If only the first records were read, their number is an estimate; val_split must then exceed it
/// by far.
void check_val_split(double val_split, const std::vector<data::DatasetTrial>& train) {
  if (val_split == 0) return;
  constexpr double kFarOff = 2;
  int64_t records = 0;
  bool is_exact = true;
  for (const data::DatasetTrial& trial : train) {
    records += trial.is_whole ? trial.stats.num_records - trial.stats.num_without_labels
                              : trial.num_records_estimated;
    is_exact = is_exact && trial.is_whole;
  }
  if (is_exact) {
    data::num_split_off(val_split, records);
  } else if (val_split >= kFarOff * static_cast<double>(records)) {
    throw DataError(fmt::format("data.val_split = {} leaves nothing to train on: there are about "
                                "{} records",
                                val_split, records),
                    "data.val_split", "lower it, or replace it by data.val, a validation file");
  }
}

}  // namespace

void return_freed_memory() {
  ::malloc_trim(0);
}

spec::ArchSpec read_arch(const fs::path& model) {
  const fs::path file = model / "config.json";
  if (!has_optional_file(file)) return arch_of_checkpoint(model);
  const auto config = parse_python_json(read_utf8_file(file));
  if (config.is_discarded() && has_weight_files(model))
    return arch_of_checkpoint(model);  // its error names the file
  if (config.is_discarded()) throw DataError("not valid JSON", file.string(), "download it again");
  spec::ArchSpec arch = spec::ArchSpec::from_hf_config(config, file.string());
  spec::add_projectors(arch, weights::read_projectors(model));
  return arch;
}

namespace {

/// Weights that are not local are assumed to be dense, unless config.json names a format.
bool says_quantised(const fs::path& config_json) {
  const auto config = parse_python_json(read_utf8_file(config_json));
  return !config.is_object() || config.contains("quantization_config");
}

}  // namespace

ModelHeaders read_headers(const fs::path& model) {
  if (!may_have_weights(model))
    return {.arch = read_arch(model), .knows_form = !says_quantised(model / "config.json")};
  ModelHeaders headers{.has_weights = true, .knows_form = true};
  {
    const auto checkpoint = weights::Checkpoint::open(model);
    headers.arch = checkpoint->arch();
    headers.stored = weights::packed_bytes(*checkpoint);
    headers.blocks = weights::packed_blocks(*checkpoint);
    headers.block_kinds = weights::block_kinds(*checkpoint);
  }
  return_freed_memory();
  return headers;
}

std::vector<FeatureProjector> projectors_of_start(const config::RunConfig& config) {
  const std::string& start = config.tuning.lora.init_from;
  return start.empty() ? std::vector<FeatureProjector>() : weights::read_projectors(start);
}

ModelHeaders read_headers(const fs::path& model, const config::RunConfig& config) {
  ModelHeaders headers = read_headers(model);
  plan::add_projectors(headers.arch, config, projectors_of_start(config));
  plan::add_score(headers.arch, config);
  return headers;
}

void require_weights(const std::string& name, const fs::path& model) {
  if (!leads_to_file(name) || may_have_weights(model)) return;
  weights::Checkpoint::open(model);  // its error says what is missing
}

namespace {

void require_modules_exist(const std::vector<std::string>& names,
                           const std::vector<spec::TensorSpec>& tensors) {
  const auto is_there = [&](const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const spec::TensorSpec& tensor) {
      return has_path_part(tensor.name.substr(0, tensor.name.rfind('.')), name);
    });
  };
  for (const std::string& name : names) {
    if (is_there(name)) continue;
    std::vector<std::string> examples = {"lm_head", "down_proj", "layers.0.mlp"};
    std::erase_if(examples, [&](const std::string& example) { return !is_there(example); });
    throw ConfigError(fmt::format("no module of the model is named `{}`", name),
                      "tuning.skip_modules",
                      "use the model's names of modules: " + join(examples, " or "));
  }
}

}  // namespace

void check_tuning(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  plan::require_parts_exist(tuning, arch);
  if (tuning.trains_adapter()) {
    const spec::LoraSpec lora = plan::lora_spec(tuning, arch);
    spec::require_targets_exist(lora, arch);
    spec::require_pattern_fits(lora, arch);
    spec::require_adapters(lora, arch);
    // Those of a tower, too, which records with images load.
    require_modules_exist(
        tuning.skip_modules,
        plan::with_tower(spec::tensor_specs(arch), arch, {.is_loaded = arch.vision.has_value()}));
    if (lora.pissa) spec::require_pissa_fits(lora, arch);
    spec::require_patterns_match(lora, arch);
  } else if (tuning.mode == config::TuningMode::kPartial) {
    spec::require_trainable_parts(tuning.trainable, arch, tuning.train_parts.trained());
    spec::TrainableNames(tuning.trainable, tensors_of(arch, tuning.train_parts.trained()));
  }
}

void warn_of_files_in_both(const config::DataConfig& data) {
  const std::vector<std::string> both = data::files_in_both(data);
  if (both.empty()) return;
  log::warn(
      "data.val reads the same files as data.train ({}{}), so its loss says nothing about unseen "
      "data; data.val_split in place of data.val holds out records",
      both[0], both.size() > 1 ? fmt::format(" and {} more", both.size() - 1) : "");
}

namespace {

/// Logs whether vLLM can load the adapter that the run will write. If the run starts from an
/// adapter, that adapter decides which modules it has.
void log_vllm_support(const config::RunConfig& config, const spec::ArchSpec& arch) {
  const config::TuningConfig& tuning = config.tuning;
  if (!tuning.trains_adapter() || !tuning.lora.init_from.empty()) return;
  if (config.train.objective_info().embeds()) return;  // it is not to write texts
  const spec::LoraSpec lora = plan::lora_spec(tuning, arch);
  const std::set<std::string> adapted = spec::adapted_names(lora, arch);
  const auto is_adapted = [&](const std::string& name) { return adapted.contains(name); };
  const auto advice = weights::vllm_advice(lora, !lora.modules_to_save.empty(), arch, is_adapted);
  if (!advice) return;
  advice->is_warning ? log::warn("{}", advice->text) : log::info("{}", advice->text);
}

std::string text_of_base(const config::RunConfig& config, const spec::ArchSpec& arch,
                         const plan::StoredBytes& stored, const plan::TowerUse& use) {
  const config::DTypeChoice dtype = config.model.dtype;
  const int64_t element_bytes = dtype == config::DTypeChoice::kFp32 ? 4 : 2;
  const config::TuningConfig& tuning = config.tuning;
  const int64_t bytes = plan::base_bytes(arch, tuning, element_bytes, stored, use);
  const std::string form =
      plan::keeps_stored(tuning, !stored.empty())
          ? (tuning.skip_modules.empty() && tuning.quant_embeddings != false
                 ? "quantised matrices as in the files, the rest"
                 : "quantised matrices as in the files (except those that tuning.skip_modules or "
                   "quant_embeddings name), the rest")
      : tuning.quantises_base()
          ? fmt::format("linear layers{} in {}, the rest",
                        tuning.quant_embeddings.value_or(false) ? ", embedding and head" : "",
                        tuning.quant_name())
          : "all weights";
  return fmt::format("base: {} in memory: {} in {}", format_bytes(static_cast<uint64_t>(bytes)),
                     form, config::dtype_name(dtype));
}

}  // namespace

namespace {

data::TextModel text_model(const config::RunConfig& config, const fs::path& model,
                           const spec::ArchSpec& arch) {
  data::TextModel text = load_text_model(model, config, arch);
  text.num_embeddings = arch.vocab_size;
  return text;
}

/// Whether a run loads the image side for its data, as far as their first records say.
bool reads_images(const config::RunConfig& config, const data::TextModel& text) {
  if (text.images == nullptr || text.images->refusal) return false;
  try {
    return data::begins_with_images(config, config.data.train, /*is_validation=*/false) ||
           data::begins_with_images(config, config.data.val, /*is_validation=*/true);
  } catch (const DataError&) {  // the look at the data reports it
    return false;
  }
}

/// @param counts whether to read all records of a small data set
data::DatasetTrial try_source(const config::RunConfig& config, const config::DataSource& source,
                              bool is_validation, const data::TextModel& text, bool counts) {
  constexpr double kMaxTokens = 8e6;  // some seconds
  data::DatasetTrial trial = data::try_dataset(config, source, is_validation, text);
  if (!counts || trial.is_whole) return trial;
  const double times = static_cast<double>(trial.num_records_estimated) /
                       static_cast<double>(std::max<int64_t>(1, trial.stats.num_records));
  const double tokens = times * static_cast<double>(trial.stats.num_tokens),
               examples = times * static_cast<double>(trial.stats.num_examples) /
                          static_cast<double>(data::documents_together(config));
  if (tokens > kMaxTokens || !may_decide_sizes(config, tokens, examples)) return trial;
  return data::try_dataset(config, source, is_validation, text, INT64_MAX);
}

}  // namespace

std::vector<data::DatasetTrial> try_training_data(const config::RunConfig& config,
                                                  const fs::path& model,
                                                  const ModelHeaders& headers,
                                                  bool counts_small_data) {
  const data::TextModel text = text_model(config, model, headers.arch);
  std::vector<data::DatasetTrial> trials;
  for (const config::DataSource& source : config.data.train)
    trials.push_back(try_source(config, source, /*is_validation=*/false, text, counts_small_data));
  return trials;
}

RunCheck check_run(const config::RunConfig& config, const fs::path& model,
                   const ModelHeaders& headers, bool counts_small_data) {
  const auto& [arch, stored, blocks, block_kinds, has_weights, knows_form] = headers;
  check_tuning(config.tuning, arch);
  if (config.tuning.trains_adapter() && config.tuning.keeps_blocks() && has_weights)
    plan::require_blocks(config.tuning.quant, block_kinds);
  plan::require_pissa_over(config.tuning, arch, stored, block_kinds);
  spec::aux_loss_coef(config.train.router_aux_loss_coef, arch.mixture);
  log_vllm_support(config, arch);
  const data::TextModel text = text_model(config, model, arch);
  const auto use =
      plan::TowerUse::of(config.tuning, arch, arch.vision && reads_images(config, text));
  RunCheck check{.lines = text_of(config, arch, use)};
  std::vector<std::string>& lines = check.lines;
  if (config.tuning.trains_adapter()) lines.push_back(text_of_base(config, arch, stored, use));
  if (const std::string idle =
          plan::idle_quant_keys(config.tuning, plan::keeps_stored(config.tuning, !stored.empty()));
      !idle.empty())
    log::warn("{}", idle);
  if (const std::string idle = plan::idle_optimizer_keys(config, arch); !idle.empty())
    log::warn("{}", idle);
  data::warn_of_idle_template_variables(text, config.data.chat_template_kwargs);
  const auto look = [&](const config::DataSource& source, bool is_validation) {
    data::DatasetTrial trial =
        try_source(config, source, is_validation, text, counts_small_data && !is_validation);
    for (const std::string& warning : trial.warnings) log::warn("{}", warning);
    lines.push_back(text_of(trial, config.train.objective_info().head));
    if (!is_validation) check.train.push_back(std::move(trial));
  };
  data::ProblemCollector problems;
  for (const config::DataSource& source : config.data.train)
    problems.run([&] { look(source, false); });
  for (const config::DataSource& source : config.data.val)
    problems.run([&] { look(source, true); });
  problems.throw_if_any();
  check_val_split(config.data.val_split, check.train);
  return check;
}

}  // namespace sftrun::app
