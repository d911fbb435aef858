#pragma once

#include "commands.h"
#include "session.h"
#include "sftrun/weights/embedding_files.h"

namespace sftrun::engine {

/// `sftrun score` with a model that embeds texts: adds "embedding" to each record, a query or another
/// text (data::example_to_embed).
int embed_records(const app::ScoreRequest& request, const weights::EmbeddingSettings& settings,
                  Rank& rank);

}  // namespace sftrun::engine
