#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "model_source.h"
#include "sftrun/config/load.h"
#include "sftrun/plan/teacher.h"

/// The teacher that `train.teacher` names.
namespace sftrun::app {

/// Whether there are scores, or may be a model, and whether the run can use them. Loads nothing.
/// @param settings "run.yaml data.packing=false": how other commands name the configuration
/// @throws ConfigError, DataError
void require_teacher(const config::LoadedConfig& loaded, const std::string& settings);

/// A model beside the student.
struct TeacherSource {
  std::filesystem::path model;                         ///< a directory or a .gguf file
  std::string adapter;                                 ///< a directory; empty: none
  std::shared_ptr<const TemporaryFolder> folder = {};  ///< of ModelAsked::headers_only; null: none

  /// What a plan of memory knows of it.   @throws as read_headers
  std::shared_ptr<const plan::TeacherUse> use(const config::TrainConfig& train) const;
};

/// @param how `quiet`, `parts` and `headers_only` of its files
/// @return nullopt: no model is beside the student   @throws as find_model and find_adapter
std::optional<TeacherSource> find_teacher(const config::LoadedConfig& loaded, ModelAsked how);

}  // namespace sftrun::app
