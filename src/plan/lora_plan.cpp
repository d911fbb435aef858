#include "sftrun/plan/lora_plan.h"

#include <algorithm>
#include <iterator>

#include "sftrun/core/error.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::plan {
namespace {

spec::NamePattern pattern_of(const nlohmann::ordered_json& values) {
  spec::NamePattern pattern;
  for (const auto& [name, value] : values.items()) pattern.emplace_back(name, value.get<double>());
  return pattern;
}

}  // namespace

void require_parts_exist(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const TrainedParts trained = tuning.train_parts.trained();
  const bool has_projector = arch.vision || !arch.projectors.empty();
  if ((arch.vision || !trained.vision) && (has_projector || !trained.projector)) return;
  const bool trains_others = trained.language || (trained.projector && has_projector);
  throw ConfigError(
      fmt::format("the model has no images: it has no {} part",
                  part_name(trained.vision ? ModelPart::kVision : ModelPart::kProjector)),
      "tuning.train_parts",
      trained.vision ? fmt::format("remove {}, or use a model that takes images",
                                   trains_others ? "vision from train_parts" : "train_parts")
                     : "remove train_parts, use a model that takes images, or set model.projectors "
                       "for features of another encoder");
}

namespace {

/// Whether `tuning.trainable` names every tensor of the last projectors.
bool names_projectors(const config::TuningConfig& tuning, const spec::ArchSpec& arch,
                      int64_t count) {
  const std::vector<spec::TensorSpec> tensors =
      with_tower(spec::tensor_specs(arch), arch, {.is_loaded = arch.vision.has_value()});
  const spec::TrainableNames names(tuning.trainable, tensors);
  const int64_t first = std::ssize(arch.projectors) - count;
  return std::all_of(tensors.begin(), tensors.end(), [&](const spec::TensorSpec& tensor) {
    return tensor.projector < first || names.match(tensor.name);
  });
}

}  // namespace

void add_projectors(spec::ArchSpec& arch, const config::RunConfig& config,
                    const std::vector<FeatureProjector>& of_start) {
  const int64_t num_new = spec::add_projectors_of_run(arch, of_start, config.model.projectors);
  const config::TuningConfig& tuning = config.tuning;
  if (num_new == 0) return;
  const bool is_partial = tuning.mode == config::TuningMode::kPartial;
  if (tuning.train_parts.trains(ModelPart::kProjector) &&
      (!is_partial || names_projectors(tuning, arch, num_new)))
    return;
  throw ConfigError(
      fmt::format("the projector {} is new: it has random weights, and would not train",
                  arch.projectors.back().name),
      "model.projectors",
      is_partial ? "set tuning.train_parts to [projector, language], and add '^projectors' to "
                   "tuning.trainable"
      : tuning.trains_adapter()
          ? "set tuning.train_parts to {projector: full, language: lora}; or, to train projectors "
            "alone, tuning.mode to full and train_parts to [projector]"
          : "set tuning.train_parts to [projector], or to [projector, language]");
}

spec::LoraSpec lora_spec(const config::TuningConfig& tuning, const spec::ArchSpec& arch) {
  const config::LoraConfig& lora = tuning.lora;
  spec::LoraSpec spec{.r = lora.r,
                      .alpha = lora.alpha,
                      .dropout = lora.dropout,
                      .rslora = lora.rslora,
                      .target_modules = lora.target_modules.names,
                      .target_parameters = lora.target_parameters,
                      .rank_pattern = pattern_of(lora.rank_pattern),
                      .alpha_pattern = pattern_of(lora.alpha_pattern),
                      .dora = lora.dora,
                      .pissa = lora.init == config::LoraInit::kPissa,
                      .modules_to_save = lora.modules_to_save,
                      .parts = tuning.train_parts.trained()};
  if (!lora.target_modules.expression.empty())
    spec.target_pattern =
        spec::target_pattern(lora.target_modules.expression, "tuning.lora.target_modules");
  for (const ModelPart part : kModelParts) {
    if (!tuning.full_parts().has(part) || !arch.vision) continue;
    std::vector<std::string> modules = spec::modules_of(arch, part);
    std::move(modules.begin(), modules.end(), std::back_inserter(spec.modules_to_save));
  }
  if (tuning.trains_adapter() && tuning.train_parts.trains(ModelPart::kProjector))
    for (const FeatureProjector& projector : arch.projectors)
      spec.modules_to_save.push_back(projector.module());
  if (tuning.trains_adapter() && arch.score) spec.modules_to_save.emplace_back(spec::kScoreModule);
  return spec;
}

namespace {

constexpr const char* kObjectiveKey = "train.objective";

spec::ScoreSpec score_of(const config::RunConfig& config) {
  const auto& classes = config.data.classes;
  if (config.train.objective_info().head == config::HeadKind::kReward) return {.num_labels = 1};
  constexpr int64_t kUnknown = 2;  // until the run is resolved
  return {.num_labels = classes.empty() ? kUnknown : std::ssize(classes),
          .names = classes,
          .problem_type = config.train.problem_type == config::ProblemType::kMultiLabel
                              ? "multi_label_classification"
                              : "single_label_classification"};
}

/// @throws ConfigError for models and targets that are no part of one that embeds texts
void require_embedder(const spec::ArchSpec& arch, const config::RunConfig& config) {
  if (arch.is_text_part() || !arch.whole_model.empty() || arch.vision)
    throw ConfigError("train.objective embed is for models of texts", kObjectiveKey,
                      "use a model of texts alone");
  const config::TuningConfig& tuning = config.tuning;
  const auto names_head = [](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), spec::kHeadModule) != names.end();
  };
  const char* key = !tuning.trains_adapter()                       ? ""
                    : names_head(tuning.lora.target_modules.names) ? "tuning.lora.target_modules"
                    : names_head(tuning.lora.modules_to_save)      ? "tuning.lora.modules_to_save"
                                                                   : "";
  if (*key != '\0')
    throw ConfigError("lm_head is trained, and train.objective embed has no language-model head",
                      key, "remove lm_head");
}

}  // namespace

std::optional<spec::ScoreSpec> score_of_run(const spec::ArchSpec& arch,
                                            const config::RunConfig& config) {
  const config::ObjectiveInfo& objective = config.train.objective_info();
  if (objective.embeds()) require_embedder(arch, config);
  if (!objective.has_scores()) {
    if (!arch.score) return std::nullopt;
    throw ConfigError(
        fmt::format("the model has a head of scores and no language-model head, which "
                    "train.objective {} trains",
                    objective.name),
        kObjectiveKey, "set train.objective to reward or classify, or use the model's base");
  }
  if (arch.is_text_part() || !arch.whole_model.empty() || arch.vision)
    throw ConfigError(
        fmt::format("train.objective {} is for models of texts: transformers loads no model with "
                    "images that has such a head",
                    objective.name),
        kObjectiveKey, "use a model of texts alone");
  if (spec::score_class(arch).empty())
    throw ConfigError(
        fmt::format("train.objective {}: transformers has no class ...ForSequenceClassification "
                    "for the family {}, so nothing could load the result",
                    objective.name, arch.family),
        kObjectiveKey, "use a model of another family, such as llama, qwen3 or gemma3_text");
  return score_of(config);
}

bool has_no_head(const config::RunConfig& config) {
  return config.train.objective_info().embeds();
}

void add_score(spec::ArchSpec& arch, const config::RunConfig& config) {
  if (auto score = score_of_run(arch, config)) spec::set_score(arch, std::move(*score));
  if (has_no_head(config)) arch.tie_word_embeddings = true;
}

}  // namespace sftrun::plan
