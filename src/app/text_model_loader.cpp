#include "text_model_loader.h"

#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/features.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/hf_text_files.h"

namespace sftrun::app {

data::TextModel load_text_model(const std::filesystem::path& model,
                                const std::string& configured_template,
                                const images::ImageCaps& caps) {
  if (is_folder(model)) {  // its weights need not be there
    data::TextModel text = data::make_text_model(
        tokenizer::Tokenizer::from_directory(model), tokenizer::chat_template_in(model),
        weights::read_special_texts(model), configured_template,
        weights::generation_eos_ids(model));
    data::set_images(text, data::image_input_of(model, *text.tokenizer, caps));
    return text;
  }
  const auto checkpoint = weights::Checkpoint::open(model);
  return data::make_text_model(checkpoint->tokenizer(), checkpoint->chat_template(),
                               checkpoint->render_defaults(), configured_template,
                               checkpoint->arch().eos_token_ids);
}

data::TextModel load_text_model(const std::filesystem::path& model, const config::RunConfig& config,
                                const spec::ArchSpec& arch) {
  data::TextModel text =
      load_text_model(model, config.model.chat_template, data::image_caps(config.data));
  for (const std::string& idle : data::idle_image_caps(text, config.data)) log::warn("{}", idle);
  text.features = data::feature_input_of(arch.projectors, *text.tokenizer);
  return text;
}

}  // namespace sftrun::app
