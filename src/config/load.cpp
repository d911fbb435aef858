#include "sftrun/config/load.h"

#include <fmt/format.h>

#include <algorithm>

#include "layers.h"
#include "loss_names.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/trackers.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

/// The path as given if it exists; else the same path relative to the YAML's directory if that
/// exists.
std::string rebased(const std::string& text, const std::filesystem::path& directory) {
  if (text.empty()) return text;
  const std::filesystem::path path = expanded_home(text);
  if (path.is_absolute() || exists_or_matches(path)) return path.string();
  const std::filesystem::path beside = (directory / path).lexically_normal();
  return exists_or_matches(beside) ? beside.string() : path.string();
}

void rebase_paths(RunConfig& config, const std::filesystem::path& directory) {
  for (std::string* path :
       {&config.tuning.lora.init_from, &config.model.name, &config.data.image_root})
    *path = rebased(*path, directory);
  if (config.train.reference_model() == ReferenceModel::kPath)
    config.train.reference = rebased(config.train.reference, directory);
  config.train.teacher = rebased(config.train.teacher, directory);
  for (std::vector<DataSource>* sources : {&config.data.train, &config.data.val}) {
    for (DataSource& source : *sources) {
      source.path = rebased(source.path, directory);
      source.image_root = rebased(source.image_root, directory);
    }
  }
  // Not a path: a template given as text (these characters are never in a file name), and the name
  // of a built-in template, even if a folder has the same name.
  if (config.model.chat_template.find_first_of("{\n") == std::string::npos) {
    const std::string path = rebased(config.model.chat_template, directory);
    const bool is_folder_path =
        config.model.chat_template.find('/') != std::string::npos && is_folder(path);
    if (is_plain_file(path) || is_folder_path) config.model.chat_template = path;
  }
}

/// bf16 and fp16 of the run take precedence over the dtype of the machine file, and over one that a
/// named file has by default.
void drop_lower_dtype(LoadedConfig& loaded, const std::string& machine_place,
                      const NamedFiles& named) {
  const bool asked = loaded.config.train.bf16 || loaded.config.train.fp16;
  const std::string place = loaded.place_of("model.dtype");
  const bool is_lower = place == machine_place || named.is_default("model.dtype", place);
  if (!asked || place.empty() || !is_lower) return;
  loaded.config.model.dtype = DTypeChoice::kAuto;
  loaded.places.erase("model.dtype");
  std::erase_if(loaded.overrides, [](const Override& old) { return old.key == "model.dtype"; });
}

/// Values are read one by one. Which losses there are is known when all are.
void name_losses(const ObjectiveInfo& objective, Problems& problems) {
  const std::string of_any = fix_of_unknown_loss(nullptr);
  for (Problem& problem : problems)
    if (problem.fix == of_any) problem.fix = fix_of_unknown_loss(&objective);
}

/// A key whose value was refused is not also reported as missing.
void add_relations(const LoadedConfig& loaded, ConfigUse use, Problems& problems,
                   std::vector<std::string>& warnings) {
  Problems relations;
  validate(loaded, use, relations, warnings);
  const Problems refused = problems;
  for (Problem& relation : relations) {
    const bool consequence =
        std::any_of(refused.begin(), refused.end(), [&](const Problem& problem) {
          const std::string key = problem.message.substr(0, problem.message.find('`', 1) + 1);
          return key.starts_with('`') && relation.message.find(key) != std::string::npos;
        });
    if (!consequence) problems.push_back(std::move(relation));
  }
}

void append(Problems& problems, const Problems& more) {
  problems.insert(problems.end(), more.begin(), more.end());
}

/// What the named files said is in the other fields now.
void keep_values_of(NamedFiles named, LoadedConfig& loaded) {
  loaded.accelerate = std::move(named.launch);
  loaded.notes = std::move(named.notes);
  loaded.warnings.insert(loaded.warnings.end(), named.warnings.begin(), named.warnings.end());
  loaded.config.parallel.accelerate.clear();
  loaded.config.parallel.deepspeed.clear();
}

/// Validation data that the command line names replace those of the run.
void keep_named_validation(const std::vector<Assignment>& command_line, LoadedConfig& loaded) {
  config::DataConfig& data = loaded.config.data;
  const auto is_named = [&](const char* key) {
    return std::any_of(command_line.begin(), command_line.end(),
                       [&](const Assignment& one) { return one.key == key; });
  };
  const bool names_val = is_named("data.val"), names_split = is_named("data.val_split");
  if (names_val == names_split || data.val.empty() || data.val_split == 0) return;
  if (names_val)
    data.val_split = 0;
  else
    data.val.clear();
  const std::string dropped = names_val ? "data.val_split" : "data.val";
  loaded.places.erase(dropped);
  std::erase_if(loaded.overrides, [&](const Override& old) { return old.key == dropped; });
}

/// @param yaml nullptr: none
LoadedConfig load(const std::filesystem::path* yaml, const std::vector<std::string>& words,
                  ConfigUse use, const ForeignFiles& foreign) {
  LoadedConfig loaded;
  Binding fields = bind(loaded.config);
  Problems problems, of_environment, of_command_line;
  const std::filesystem::path directory = yaml == nullptr ? "" : yaml->parent_path();
  apply(from_machine_file(loaded.machine, problems), fields, loaded, problems);
  const std::string machine_dtype = loaded.place_of("model.dtype");
  std::vector<Assignment> run;
  if (yaml != nullptr) {
    const std::string file = yaml->string();
    const Value document = parse_yaml(read_text_file(*yaml), file, problems);
    foreign.require_own_run(document, *yaml);
    run = flatten(document, file, fields, problems);
  }
  const std::vector<Assignment> environment =
      from_environment(fields, of_environment, loaded.warnings);
  const std::vector<Assignment> command_line = from_command_line(words, fields, of_command_line);
  NamedFiles named = foreign.read_named(
      {&run, &environment, &command_line},
      [&](const std::string& path) { return rebased(path, directory); }, problems);
  apply(named.assignments(), fields, loaded, problems);
  apply(agreeing(std::move(run), named, {&environment, &command_line}, problems), fields, loaded,
        problems);
  append(problems, of_environment);
  apply(environment, fields, loaded, problems);
  append(problems, of_command_line);
  apply(command_line, fields, loaded, problems);
  drop_lower_dtype(loaded, machine_dtype, named);
  if (use == ConfigUse::kEvaluation) keep_named_validation(command_line, loaded);
  settle_trackers(loaded);
  name_losses(loaded.config.train.objective_info(), problems);
  std::vector<std::string> relation_warnings;
  add_relations(loaded, use, problems, relation_warnings);
  throw_if_any(problems);
  keep_values_of(std::move(named), loaded);
  loaded.warnings.insert(loaded.warnings.end(), relation_warnings.begin(), relation_warnings.end());
  if (yaml != nullptr) rebase_paths(loaded.config, directory);
  return loaded;
}

}  // namespace

std::string LoadedConfig::place_of(const std::string& key) const {
  return config::place_of(places, key);
}

LoadedConfig load_config(const std::filesystem::path& yaml,
                         const std::vector<std::string>& overrides, const ForeignFiles& foreign) {
  return load(&yaml, overrides, ConfigUse::kTraining, foreign);
}

LoadedConfig load_config_for_eval(const std::filesystem::path& yaml,
                                  const std::vector<std::string>& overrides,
                                  const ForeignFiles& foreign) {
  return load(&yaml, overrides, ConfigUse::kEvaluation, foreign);
}

LoadedConfig config_from_overrides(const std::vector<std::string>& overrides,
                                   const ForeignFiles& foreign) {
  return load(nullptr, overrides, ConfigUse::kNoRun, foreign);
}

void require_files(const LoadedConfig& loaded) {
  Problems missing;
  const auto require = [&](const std::string& key, const std::string& path) {
    if (path.empty() || exists_or_matches(path)) return;
    missing.push_back(
        {fmt::format("{}: {}: {}", key, is_glob(path) ? "no file matches" : "no such file",
                     shown_path(path)),
         loaded.place_of(key),
         "paths are relative to the current directory, or to the directory of the YAML file"});
  };
  const auto require_folder = [&](const std::string& key, const std::string& path) {
    if (path.empty() || is_folder(path)) return;
    missing.push_back(
        {fmt::format("{}: {}: {}", key.ends_with("image_root") ? key : key + ": image_root",
                     exists_or_matches(path) ? "not a folder" : "no such folder", shown_path(path)),
         loaded.place_of(key),
         "name the folder that the paths of images in the records are relative to; it "
         "is looked for in the current directory, and beside the YAML file"});
  };
  const RunConfig& config = loaded.config;
  for (const DataSource& source : config.data.train) require("data.train", source.path);
  for (const DataSource& source : config.data.val) require("data.val", source.path);
  require_folder("data.image_root", config.data.image_root);
  for (const DataSource& source : config.data.train)
    require_folder("data.train", source.image_root);
  for (const DataSource& source : config.data.val) require_folder("data.val", source.image_root);
  require("tuning.lora.init_from", config.tuning.lora.init_from);
  if (config.train.reference_model() == ReferenceModel::kPath && config.train.needs_reference() &&
      !leads_to_file(config.train.reference))
    missing.push_back({fmt::format("`train.reference` is {}, and there is no such file",
                                   shown_path(config.train.reference)),
                       loaded.place_of("train.reference"),
                       "write start, base, or the path of a model or an adapter"});
  if (missing.size() > 1) throw DataProblems(missing);
  if (!missing.empty()) throw DataError(missing[0].message, missing[0].where, missing[0].fix);
}

}  // namespace sftrun::config
