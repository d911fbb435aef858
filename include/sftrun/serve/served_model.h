#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sftrun/data/prompt.h"
#include "sftrun/data/text_model.h"
#include "sftrun/model/decoder.h"

namespace sftrun::serve {

/// A model, or an adapter on its base, that requests name.
struct ServedModel {
  ServedModel(std::string id_, data::TextModel text_, model::Decoder& decoder_, int64_t max_length_)
      : id(std::move(id_)),
        text(std::move(text_)),
        decoder(decoder_),
        max_length(max_length_),
        chat_prompts(text, text.chat_template != nullptr) {}

  std::string id;
  data::TextModel text;
  model::Decoder& decoder;
  int64_t max_length = 0;  ///< tokens of a prompt with its answer
  data::PromptBuilder chat_prompts;
};

}  // namespace sftrun::serve
