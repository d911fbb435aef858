#include "teacher_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli.h"
#include "run_check.h"
#include "run_resolution.h"
#include "sftrun/config/teacher.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/teacher_scores.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"

namespace sftrun::app {
namespace {

constexpr const char* kKey = "train.teacher";

/// @pre there are scores
void require_scores(const config::LoadedConfig& loaded) {
  const config::TrainConfig& train = loaded.config.train;
  if (loaded.config.data.streaming)
    throw ConfigError(
        "`train.teacher` names scores of examples that are known before the first step, and with "
        "`data.streaming` they are not",
        loaded.place_of("data.streaming"),
        "remove data.streaming, or name the teacher's model in train.teacher");
  if (train.has_own_answers())
    throw ConfigError(
        "`train.teacher` names scores of answers that are known before the first step, and with "
        "`train.rollouts.share` the student writes others while it trains",
        loaded.place_of("train.rollouts.share"),
        "name the teacher's model in train.teacher, or remove train.rollouts");
  const data::TeacherDescription teacher = data::TeacherScores(train.teacher).description();
  data::require_temperature(teacher, train.kd_temperature, loaded.place_of("train.kd_temperature"));
  const std::string place = config::place_of(loaded.places, "train.teacher_topk");
  if (!place.empty() && train.teacher_topk != teacher.k)
    throw ConfigError(fmt::format("`train.teacher_topk` is {}, and the scores in {} were written "
                                  "with --topk {}",
                                  train.teacher_topk, train.teacher, teacher.k),
                      place,
                      "remove teacher_topk, or let the teacher score into another folder with "
                      "that --topk");
}

/// As far as names of files tell.
bool may_be_model(const std::filesystem::path& path) {
  const auto holds = [&](const char* file) { return leads_to_file(path / file); };
  if (!leads_to_file(path)) return hub::parse_model_name(path.string()).has_value();
  if (!is_folder(path)) return true;
  const auto entries = readable_entries_of(path);
  return holds("config.json") || holds("model/config.json") ||
         leads_to_file(observe::adapter_at(path) / "adapter_config.json") ||
         std::any_of(entries.begin(), entries.end(), [](const std::filesystem::path& entry) {
           return ascii_lower(entry.extension().string()) == ".gguf";
         });
}

}  // namespace

void require_teacher(const config::LoadedConfig& loaded, const std::string& settings) {
  const config::TrainConfig& train = loaded.config.train;
  switch (config::teacher_kind(train)) {
    case config::TeacherKind::kNone:
      return;
    case config::TeacherKind::kScores:
      return require_scores(loaded);
    case config::TeacherKind::kModel:
      break;
  }
  if (!may_be_model(train.teacher))
    throw DataError(
        fmt::format("`train.teacher` is {}, and neither a model nor a teacher's scores are there",
                    train.teacher),
        loaded.place_of(kKey),
        fmt::format("name the teacher's model, or let it score the run's data: sftrun score "
                    "--config {} --model TEACHER --topk 64 --output {} "
                    "(docs/distillation.md)",
                    settings, shell_word(train.teacher)));
  if (has_device_map(loaded.config.parallel))
    throw ConfigError(
        "`train.teacher` names a model, and `parallel.device_map` says where the layers of the "
        "student are: the teacher has others",
        loaded.place_of(kKey),
        "use parallel.strategy pipeline or fsdp with several processes, or let the teacher score "
        "the run's data: sftrun score --topk (docs/distillation.md)");
}

std::optional<TeacherSource> find_teacher(const config::LoadedConfig& loaded, ModelAsked how) {
  const std::string& name = loaded.config.train.teacher;
  // Scores that are not there yet (`require_teacher`) are none of its business.
  if (config::teacher_kind(loaded.config.train) != config::TeacherKind::kModel ||
      !may_be_model(name))
    return std::nullopt;
  TeacherSource source;
  how.name = name;
  how.where = loaded.place_of(kKey);
  const std::filesystem::path adapter = observe::adapter_at(name);
  if (leads_to_file(adapter / "adapter_config.json")) {
    source.adapter = absolute_path(adapter).string();
    const bool quiet = how.quiet, headers_only = how.headers_only;
    const hub::ModelParts parts = how.parts;
    how = base_of(adapter);
    how.quiet = quiet, how.headers_only = headers_only, how.parts = parts;
  }
  ModelSource model = find_model(how);
  source.model = absolute_path(model.path);
  source.folder = std::move(model.folder);
  return source;
}

std::shared_ptr<const plan::TeacherUse> TeacherSource::use(const config::TrainConfig& train) const {
  ModelHeaders headers = read_headers(model);
  int64_t values = 0;
  if (!adapter.empty())
    values = spec::num_lora_values(weights::load_adapter_config(adapter, headers.arch).lora,
                                   headers.arch);
  return std::make_shared<const plan::TeacherUse>(
      plan::TeacherUse{.arch = std::move(headers.arch),
                       .stored = std::move(headers.stored),
                       .form = config::form_of_teacher(train),
                       .adapter_values = values});
}

}  // namespace sftrun::app
