#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "commands.h"
#include "run_check.h"
#include "run_resolution.h"
#include "sftrun/config/run_config.h"
#include "teacher_source.h"

/// Finds what a run reads beside its data: model, adapter, reference and teacher.
namespace sftrun::app {

/// The configuration as other commands name it after --config: its file and what changes it.
std::string words_of_settings(const TrainOptions& options);

/// Before a model is downloaded.   @throws ConfigError naming a file that is missing
void require_files_of_run(const config::LoadedConfig& loaded, const TrainOptions& options);

/// Replaces init_from by the path of the adapter.
void locate_adapter(config::LoadedConfig& loaded, bool quiet);

/// Replaces the path of train.reference by that of the model or adapter there, which may be in a
/// run directory, and a name on the hub by the folder of the model's files.
void locate_reference(config::LoadedConfig& loaded, bool quiet);

/// Finds the model's path. model.name of a model on the hub becomes owner/name, so that run.json
/// and the adapter name it in a way that others can find.
std::filesystem::path locate_model(config::LoadedConfig& loaded, const TrainOptions& options,
                                   bool quiet);

/// Finds a teacher that is a model, and adds it to what is planned.
std::optional<TeacherSource> locate_teacher(const config::LoadedConfig& loaded,
                                            const TrainOptions& options, bool quiet,
                                            RunPlace& place);

/// If a model cannot be read, the engine reports the error.
std::optional<ModelHeaders> headers_if_readable(const std::filesystem::path& model,
                                                const config::RunConfig& config);

}  // namespace sftrun::app
