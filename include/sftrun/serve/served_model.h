#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/data/image_input.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/text_model.h"
#include "sftrun/model/decoder.h"

namespace sftrun::serve {

/// A model, or an adapter on its base, that requests name.
struct ServedModel {
  ServedModel(std::string id_, data::TextModel text_, model::Decoder& decoder_, int64_t max_length_,
              layers::CopyRanks* ranks_ = nullptr)
      : id(std::move(id_)),
        text(without_files(std::move(text_))),
        decoder(decoder_),
        max_length(max_length_),
        ranks(ranks_),
        chat_prompts(text, text.chat_template != nullptr) {}

  std::string id;
  data::TextModel text;
  model::Decoder& decoder;
  int64_t max_length = 0;    ///< tokens of a prompt with its answer
  layers::CopyRanks* ranks;  ///< that have the decoder's model together; null: this one has it
  data::PromptBuilder chat_prompts;
  /// What the decoder is a part of; null: it outlives this object by itself.
  std::shared_ptr<void> owner = nullptr;

 private:
  /// Who asks must not read the files of this machine.
  static data::TextModel without_files(data::TextModel text) {
    text.features = nullptr;  // they are in files alone
    if (text.images == nullptr) return text;
    auto images = std::make_shared<data::ImageInput>(*text.images);
    images->reads_files = false;
    text.images = std::move(images);
    return text;
  }
};

/// In the order in which clients see them.
using ServedModels = std::vector<std::shared_ptr<ServedModel>>;

}  // namespace sftrun::serve
