#pragma once

#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// The `post_processor` section: the special tokens around a single text.
struct PostProcessor {
  std::vector<TokenId> before, after;

  PostProcessor() = default;
  /// @throws DataError for a type that the library does not know
  PostProcessor(const Json& section, const std::string& where);
};

}  // namespace sftrun::tokenizer
