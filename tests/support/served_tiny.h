#pragma once

#include <filesystem>
#include <memory>

#include "sftrun/serve/served_model.h"
#include "sftrun/weights/checkpoint.h"

namespace sftrun::serve {

/// A tiny model with random weights, a byte-level tokenizer and a chat template.
struct ServedTiny {
  ServedTiny()
      : checkpoint(weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) / "models" /
                                             "tied-gqa")),
        decoder(model::Decoder::load(checkpoint, {})) {
    data::TextModel text =
        data::make_text_model(checkpoint->tokenizer(), checkpoint->chat_template(),
                              checkpoint->render_defaults(), "", checkpoint->arch().eos_token_ids);
    text.num_embeddings = checkpoint->arch().vocab_size;
    models.push_back(std::make_shared<ServedModel>("tiny", std::move(text), *decoder,
                                                   checkpoint->arch().max_position_embeddings));
  }

  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::unique_ptr<model::Decoder> decoder;
  ServedModels models;
};

}  // namespace sftrun::serve
