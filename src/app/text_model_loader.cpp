#include "text_model_loader.h"

#include "run_check.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/features.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"

namespace sftrun::app {

data::TextModel load_text_model(const std::filesystem::path& model,
                                const std::string& configured_template,
                                const images::ImageCaps& caps) {
  if (is_folder(model)) {  // its weights need not be there
    data::TextModel text = data::make_text_model(
        tokenizer::Tokenizer::from_directory(model), tokenizer::chat_template_in(model),
        weights::read_special_texts(model), configured_template,
        weights::generation_eos_ids(model));
    text.images = data::image_input_of(model, *text.tokenizer, caps);
    return text;
  }
  const auto checkpoint = weights::Checkpoint::open(model);
  return data::make_text_model(checkpoint->tokenizer(), checkpoint->chat_template(),
                               checkpoint->render_defaults(), configured_template,
                               checkpoint->arch().eos_token_ids);
}

namespace {

/// In the order of `ArchSpec::projectors`.
std::vector<FeatureProjector> projectors_of(const std::filesystem::path& model,
                                            const config::RunConfig& config) {
  spec::ArchSpec arch;
  if (is_folder(model)) spec::add_projectors(arch, weights::read_projectors(model));
  spec::add_projectors(arch, projectors_of_start(config));
  for (const FeatureProjector& projector : config.model.projectors)
    if (spec::projector_named(arch, projector.name) < 0) spec::add_projectors(arch, {projector});
  return arch.projectors;
}

}  // namespace

data::TextModel load_text_model(const std::filesystem::path& model,
                                const config::RunConfig& config) {
  data::TextModel text =
      load_text_model(model, config.model.chat_template, data::image_caps(config.data));
  for (const std::string& idle : data::idle_image_caps(text, config.data)) log::warn("{}", idle);
  text.features = data::feature_input_of(projectors_of(model, config), *text.tokenizer);
  return text;
}

}  // namespace sftrun::app
