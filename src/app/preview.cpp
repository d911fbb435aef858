#include "sftrun/data/preview.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "commands.h"
#include "model_source.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/dataset.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace {

/// https://no-color.org: any value but the empty one turns colours off.
bool wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace

int run_preview(const PreviewOptions& options) {
  config::LoadedConfig loaded = config::load_config(options.config, options.overrides);
  config::require_files(loaded);
  const config::RunConfig& config = loaded.config;
  const ModelSource source = find_model({.name = config.model.name,
                                         .revision = config.model.revision,
                                         .where = loaded.place_of("model.name"),
                                         .parts = hub::ModelParts::kText});
  const data::TextModel model = load_text_model(source.path, config.model.chat_template);
  const data::Preview preview =
      data::preview_dataset(config, config.data.train, model, options.num_examples);
  if (options.html) {
    write_file_atomically(*options.html, data::preview_html(preview, model, config.data.train));
    std::printf("%s: %zu sequences\n", options.html->c_str(), preview.sequences.size());
    return static_cast<int>(ExitCode::kDone);
  }
  std::printf("%s\n%s", config.data.train.c_str(),
              data::preview_text(preview, model, wants_colour()).c_str());
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
