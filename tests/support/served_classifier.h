#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/serve/served_model.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/score_head.h"

namespace sftrun::serve {

/// A tiny model with random weights and a head of scores, as the only model of a server.
struct ServedClassifier {
  explicit ServedClassifier(spec::ScoreSpec head)
      : checkpoint(
            weights::with_score(weights::Checkpoint::open(std::filesystem::path(SFTRUN_TEST_DATA) /
                                                          "models" / "tied-gqa"),
                                std::move(head), /*seed=*/3)),
        decoder(model::Decoder::load(checkpoint, {})) {
    data::TextModel text =
        data::make_text_model(checkpoint->tokenizer(), checkpoint->chat_template(),
                              checkpoint->render_defaults(), "", checkpoint->arch().eos_token_ids);
    text.num_embeddings = checkpoint->arch().vocab_size;
    models.push_back(std::make_shared<ServedModel>("head", std::move(text), *decoder,
                                                   checkpoint->arch().max_position_embeddings));
  }
  const ServedModel& model() const { return *models.front(); }

  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::unique_ptr<model::Decoder> decoder;
  ServedModels models;
};

}  // namespace sftrun::serve
