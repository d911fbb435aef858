#include "text_model_loader.h"

#include "sftrun/core/presence.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/hf_text_files.h"

namespace sftrun::app {

data::TextModel load_text_model(const std::filesystem::path& model,
                                const std::string& configured_template) {
  if (is_folder(model)) {  // its weights need not be there
    return data::make_text_model(tokenizer::Tokenizer::from_directory(model),
                                 tokenizer::chat_template_in(model),
                                 weights::read_special_texts(model), configured_template,
                                 weights::generation_eos_ids(model));
  }
  const auto checkpoint = weights::Checkpoint::open(model);
  return data::make_text_model(checkpoint->tokenizer(), checkpoint->chat_template(),
                               checkpoint->render_defaults(), configured_template,
                               checkpoint->arch().eos_token_ids);
}

}  // namespace sftrun::app
