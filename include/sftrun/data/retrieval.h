#pragma once

#include <cstdint>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/text_model.h"

namespace sftrun::data {

/// How many texts that do not fit an example has: `train.negatives`, else as many as the first record
/// of data.train has.   @throws DataError for files that cannot be read
int64_t find_negatives(const config::RunConfig& config);

/// How texts are read that are to be embedded.
struct EmbeddedTexts {
  std::string query_prompt, document_prompt;
  int64_t max_seq_len = 0;  ///< longer ones are cut before the special tokens at their ends
};

/// The text of a record that is to be embedded: its "query" or "anchor", else its "document" or "text".
/// @throws RecordError for a record with both or neither, or what is no text
Example example_to_embed(const Json& record, const TextModel& model, const EmbeddedTexts& texts,
                         const std::string& where);

}  // namespace sftrun::data
