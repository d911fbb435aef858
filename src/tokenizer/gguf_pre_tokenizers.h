#pragma once

#include <string>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// The pre-tokenizer that a name in tokenizer.ggml.pre stands for.
struct GgufPreTokenizer {
  Json normalizer, pre_tokenizer;  ///< sections
  bool ignore_merges = false;
};

/// The known names; of several for the same pre-tokenizer the usual one comes first.
std::vector<std::string> gguf_pre_tokenizer_names();
/// @throws DataError for an unknown name, listing the known ones
GgufPreTokenizer gguf_pre_tokenizer(const std::string& name, const std::string& where);

}  // namespace sftrun::tokenizer
