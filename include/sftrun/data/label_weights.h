#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "sftrun/core/regex.h"
#include "sftrun/tokenizer/tokenizer.h"

/// Weights of labels in the loss.
namespace sftrun::data {

/// Bytes of a text whose labels have a weight.
struct WeightedSpan {
  tokenizer::ByteSpan span;
  float weight = 1;
};

/// `data.label_weights`: what regular expressions match in an answer, and its weight.
/// Immutable; safe to use from several threads.
class LabelWeights {
 public:
  LabelWeights() = default;
  /// @param configured pattern -> weight
  explicit LabelWeights(const nlohmann::ordered_json& configured);

  bool empty() const { return rules_.empty(); }
  /// Adds the matches in one answer, in the order of the rules.   @param answer its bytes in the text
  /// @throws ConfigError for an expression that takes too many steps
  void add_matches(std::string_view text, tokenizer::ByteSpan answer,
                   std::vector<WeightedSpan>& matches) const;

 private:
  struct Rule {
    PythonRegex pattern;
    float weight = 1;
  };
  std::vector<Rule> rules_;
};

/// Sets the weights of labelled tokens [tokens]: that of the answer times that of the last match that
/// the token has a byte of. A label of weight 0 loses its mask.
/// @param spans bytes of each token   @param answers, matches of the text
/// @return empty if all are 1
std::vector<float> weigh_labels(std::span<const tokenizer::ByteSpan> spans,
                                const std::vector<WeightedSpan>& answers,
                                const std::vector<WeightedSpan>& matches,
                                std::vector<uint8_t>& mask);

}  // namespace sftrun::data
