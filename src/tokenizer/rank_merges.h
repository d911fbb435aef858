#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// A token with its rank; lower ranks have priority.
struct RankedToken {
  std::string_view text;
  TokenId id = 0;
  double priority = 0;
};

/// Order of merges with the same priority.
enum class MergeTies : uint8_t {
  kLongLeftFirst,  ///< as transformers orders a SentencePiece vocabulary by its scores
  kLowIdsFirst,    ///< as it orders a tiktoken vocabulary
};

/// SentencePiece and tiktoken merge the neighbours whose union is the token with the highest
/// priority. Returns the equivalent BPE merges: all ways to join two tokens to another one, by
/// priority of the result.
/// @param of_bytes texts are bytes and may be split anywhere; else UTF-8, split between characters
std::vector<std::pair<std::string, std::string>> merges_by_rank(
    const std::vector<RankedToken>& tokens, MergeTies ties, bool of_bytes);

}  // namespace sftrun::tokenizer
