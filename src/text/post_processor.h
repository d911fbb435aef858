#pragma once

#include <string>
#include <vector>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

namespace sftrun::text {

/// What the model's own tokenizer puts around a text: the `post_processor` section
/// (TemplateProcessing, ByteLevel, Sequence) for a single text.
struct PostProcessor {
  std::vector<TokenId> before, after;

  PostProcessor() = default;
  /// @throws DataError naming a kind that is not supported
  PostProcessor(const Json& section, const std::string& where);
};

}  // namespace sftrun::text
