#pragma once

#include <vector>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

namespace sftrun::text {

/// What the model's own tokenizer puts around a single text: the `post_processor` section.
struct PostProcessor {
  std::vector<TokenId> before, after;

  PostProcessor() = default;
  /// @throws DataError for a type that the library does not know
  PostProcessor(const Json& section, const std::string& where);
};

}  // namespace sftrun::text
