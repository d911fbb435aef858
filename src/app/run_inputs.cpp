#include "run_inputs.h"

#include <utility>

#include "data_source_finder.h"
#include "model_source.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/text_model.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {

std::string words_of_settings(const TrainOptions& options) {
  std::string words = shell_word(options.config.string());
  for (const std::string& change : options.overrides) words += " " + shell_word(change);
  return words;
}

void require_files_of_run(const config::LoadedConfig& loaded, const TrainOptions& options) {
  config::require_files(loaded);
  data::require_chat_template(loaded);
  require_teacher(loaded, words_of_settings(options));
}

void locate_adapter(config::LoadedConfig& loaded, bool quiet) {
  constexpr const char* kKey = "tuning.lora.init_from";
  std::string& adapter = loaded.config.tuning.lora.init_from;
  if (adapter.empty()) return;
  adapter = find_adapter({.name = adapter,
                          .where = loaded.place_of(kKey),
                          .quiet = quiet,
                          .names_model = "model.name="})
                .string();
}

void locate_reference(config::LoadedConfig& loaded, bool quiet) {
  config::TrainConfig& train = loaded.config.train;
  if (!train.needs_reference() || train.reference_model() != config::ReferenceModel::kPath) return;
  if (!leads_to_file(train.reference) && hub::parse_model_name(train.reference))
    train.reference = find_model({.name = train.reference,
                                  .where = loaded.place_of("train.reference"),
                                  .parts = hub::ModelParts::kAll,
                                  .quiet = quiet})
                          .path.string();
  const std::filesystem::path path = train.reference, adapter = observe::adapter_at(path);
  const bool is_adapter = leads_to_file(adapter / "adapter_config.json"),
             is_run = !is_adapter && leads_to_file(path / "model" / "config.json");
  train.reference = std::filesystem::absolute(is_adapter ? adapter
                                              : is_run   ? path / "model"
                                                         : path)
                        .lexically_normal()
                        .string();
}

std::filesystem::path locate_model(config::LoadedConfig& loaded, const TrainOptions& options,
                                   bool quiet) {
  config::ModelConfig& model = loaded.config.model;
  const ModelAsked asked{.name = model.name,
                         .revision = model.revision,
                         .where = loaded.place_of("model.name"),
                         .parts = options.dry_run ? hub::ModelParts::kText : hub::ModelParts::kAll,
                         .quiet = quiet,
                         .adapter_way = AdapterWay::kSetting};
  ModelSource source =
      options.model_path.empty() ? find_model(asked) : found_model(asked, options.model_path);
  model.name = std::move(source.name);
  model.revision = std::move(source.revision);
  return source.path;
}

std::optional<TeacherSource> locate_teacher(const config::LoadedConfig& loaded,
                                            const TrainOptions& options, bool quiet,
                                            RunPlace& place) {
  std::optional<TeacherSource> teacher = find_teacher(
      loaded,
      {.parts = options.dry_run ? hub::ModelParts::kText : hub::ModelParts::kAll, .quiet = quiet});
  if (teacher) place.devices.teacher = teacher->use(loaded.config.train);
  return teacher;
}

std::optional<ModelHeaders> headers_if_readable(const std::filesystem::path& model,
                                                const config::RunConfig& config) {
  try {
    return read_headers(model, config);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace sftrun::app
