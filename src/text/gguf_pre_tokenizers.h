#pragma once

#include <string>
#include <vector>

#include "sftrun/text/chat_template.h"

namespace sftrun::text {

/// What a name in tokenizer.ggml.pre stands for.
struct GgufPreTokenizer {
  Json normalizer, pre_tokenizer;  ///< sections
  bool ignore_merges = false;
};

/// Those that are known; of several that stand for the same the first is the usual one.
std::vector<std::string> gguf_pre_tokenizer_names();
/// @throws DataError for an unknown name, with those that are known
GgufPreTokenizer gguf_pre_tokenizer(const std::string& name, const std::string& where);

}  // namespace sftrun::text
