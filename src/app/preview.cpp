#include "sftrun/data/preview.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "commands.h"
#include "data_source_finder.h"
#include "model_source.h"
#include "run_check.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/terminal.h"
#include "sftrun/data/data_problems.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/retrieval.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"
#include "sftrun/spec/feature_projectors.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace {

bool wants_colour() {
  return ::isatty(STDOUT_FILENO) == 1 && !wants_no_color();
}

const std::vector<config::DataSource>& shown_data(const config::LoadedConfig& loaded,
                                                  const PreviewOptions& options) {
  const config::DataConfig& data = loaded.config.data;
  if (!options.validation) return data.train;
  if (!data.val.empty()) return data.val;
  throw ConfigError("--val shows data.val, which is not set", "the command line",
                    data.val_split > 0 ? "remove --val: data.val_split takes its records from "
                                         "data.train, whose records are shown without it"
                                       : "set data.val, or remove --val");
}

/// Training reads both: what it would say of those that are not shown.
void check_other_data(const config::RunConfig& config, const PreviewOptions& options,
                      const data::TextModel& model, data::ProblemCollector& refusals) {
  const bool is_validation = !options.validation;
  for (const config::DataSource& source : is_validation ? config.data.val : config.data.train) {
    refusals.run([&] {
      for (const std::string& warning :
           data::warnings_of_dataset(config, source, is_validation, model))
        log::warn("{}", warning);
    });
  }
  warn_of_files_in_both(config.data);
}

/// Of a model of which there may be the tokenizer's files alone: with the projectors of the run.
spec::ArchSpec arch_of_preview(const std::filesystem::path& model,
                               const config::RunConfig& config) {
  const bool has_arch = !is_folder(model) || has_optional_file(model / "config.json");
  spec::ArchSpec arch = has_arch ? read_arch(model) : spec::ArchSpec();
  spec::add_projectors_of_run(arch, projectors_of_start(config), config.model.projectors);
  return arch;
}

}  // namespace

int run_preview(const PreviewOptions& options) {
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  find_data(loaded, /*quiet=*/false);
  config::require_files(loaded);
  data::require_chat_template(loaded);
  if (loaded.config.train.objective_info().embeds())
    loaded.config.train.negatives = data::find_negatives(loaded.config);
  const config::RunConfig& config = loaded.config;
  const ModelSource found = find_model({.name = config.model.name,
                                        .revision = config.model.revision,
                                        .where = loaded.place_of("model.name"),
                                        .parts = hub::ModelParts::kText,
                                        .adapter_way = AdapterWay::kSetting});
  const data::TextModel model =
      load_text_model(found.path, config, arch_of_preview(found.path, config));
  const std::vector<config::DataSource>& sources = shown_data(loaded, options);
  std::vector<data::Preview> previews;
  data::ProblemCollector problems, refusals;  // records are shown in spite of `refusals`
  for (const config::DataSource& source : sources) {
    problems.run([&] {
      previews.push_back(
          data::preview_dataset(config, source, options.validation, model, options.num_examples));
    });
  }
  problems.throw_if_any();
  check_other_data(config, options, model, refusals);
  data::warn_of_idle_template_variables(model, config.data.chat_template_kwargs);
  for (const data::Preview& preview : previews) {
    for (const std::string& warning : preview.warnings) log::warn("{}", warning);
    if (preview.refusal) refusals.run([&] { throw DataError(*preview.refusal); });
  }
  if (options.html) {
    size_t num_sequences = 0;
    for (const data::Preview& preview : previews) num_sequences += preview.sequences.size();
    write_file_atomically(*options.html,
                          data::preview_html(previews, model, config::names_of(sources)),
                          SpecialFile::kAllowed);
    std::printf("%s: %s\n", options.html->c_str(), counted(num_sequences, "sequence").c_str());
    refusals.throw_if_any();
    return static_cast<int>(ExitCode::kDone);
  }
  if (options.json) {
    std::printf("%s\n", data::preview_json(previews, model).dump().c_str());
    std::fflush(stdout);
    refusals.throw_if_any();
    return static_cast<int>(ExitCode::kDone);
  }
  for (const data::Preview& preview : previews) {
    std::printf("%s\n%s", preview.name.c_str(),
                data::preview_text(preview, model, wants_colour()).c_str());
  }
  require_standard_output();
  refusals.throw_if_any();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
