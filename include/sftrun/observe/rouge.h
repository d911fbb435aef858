#pragma once

#include <cstdint>
#include <string_view>

/// ROUGE, the overlap of a text with a reference (Lin 2004, "ROUGE: A Package for Automatic
/// Evaluation of Summaries").
namespace sftrun::observe {

struct RougeScore {
  double precision = 0, recall = 0, fmeasure = 0;  ///< from 0 to 1
};

struct RougeScores {
  RougeScore rouge1, rouge2;  ///< words, and pairs of neighbouring words
  RougeScore rouge_l;         ///< longest common subsequence of words
};

/// Equal to the last bit to RougeScorer(["rouge1", "rouge2", "rougeL"]).score(reference, text) of the
/// package rouge-score 0.1.2, without stemmer (its default). Words are runs of the letters a to z and
/// of digits, after lowercasing; all other characters only separate words, so texts in other scripts
/// score 0.
/// Time grows with the product of the numbers of words, memory with their sum.
/// @param reference, text UTF-8; both may be empty
RougeScores rouge(std::string_view reference, std::string_view text);

}  // namespace sftrun::observe
