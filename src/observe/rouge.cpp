#include "sftrun/observe/rouge.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sftrun::observe {
namespace {

constexpr std::string_view kKelvinSign = "\xe2\x84\xaa";   // U+212A
constexpr std::string_view kCapitalIWithDot = "\xc4\xb0";  // U+0130

/// The character of a word that `text` begins with, in lower case; 0: none.
char word_char(std::string_view text) {
  const char c = text.front();
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) return c;
  // The only other characters whose lower case (str.lower) has a letter from a to z. That of U+0130
  // is an i and a combining dot, which ends the word.
  if (text.starts_with(kKelvinSign)) return 'k';
  if (text.starts_with(kCapitalIWithDot)) return 'i';
  return 0;
}

/// Words as numbers: equal words have equal numbers.
class WordNumbers {
 public:
  std::vector<int32_t> of(std::string_view text) {
    std::vector<int32_t> numbers;
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) numbers.push_back(number_of(word));
      word.clear();
    };
    while (!text.empty()) {
      const char c = word_char(text);
      if (c == 0)
        end_word();
      else
        word += c;
      const bool ends = text.starts_with(kCapitalIWithDot);
      if (ends) end_word();
      const size_t bytes = ends                            ? kCapitalIWithDot.size()
                           : text.starts_with(kKelvinSign) ? kKelvinSign.size()
                                                           : 1;
      text.remove_prefix(bytes);
    }
    end_word();
    return numbers;
  }

 private:
  int32_t number_of(const std::string& word) {
    return numbers_.try_emplace(word, static_cast<int32_t>(numbers_.size())).first->second;
  }

  std::unordered_map<std::string, int32_t> numbers_;
};

using Words = std::vector<int32_t>;

RougeScore rouge_score(int64_t common, size_t of_reference, size_t of_text) {
  RougeScore score;
  score.precision = static_cast<double>(common) / static_cast<double>(std::max<size_t>(of_text, 1));
  score.recall =
      static_cast<double>(common) / static_cast<double>(std::max<size_t>(of_reference, 1));
  const double sum = score.precision + score.recall;
  if (sum > 0) score.fmeasure = 2 * score.precision * score.recall / sum;
  return score;
}

/// @param n 1: words; 2: pairs
std::map<std::pair<int32_t, int32_t>, int64_t> count_ngrams(const Words& words, size_t n) {
  std::map<std::pair<int32_t, int32_t>, int64_t> counts;
  for (size_t i = 0; i + n <= words.size(); ++i) ++counts[{words[i], n == 2 ? words[i + 1] : 0}];
  return counts;
}

RougeScore rouge_n(const Words& reference, const Words& text, size_t n) {
  const auto num_ngrams = [&](const Words& words) {
    return words.size() < n ? 0 : words.size() - n + 1;
  };
  const auto theirs = count_ngrams(text, n);
  int64_t common = 0;
  for (const auto& [ngram, count] : count_ngrams(reference, n)) {
    const auto found = theirs.find(ngram);
    if (found != theirs.end()) common += std::min(count, found->second);
  }
  return rouge_score(common, num_ngrams(reference), num_ngrams(text));
}

int64_t longest_common_subsequence(const Words& a, const Words& b) {
  std::vector<int64_t> lengths(b.size() + 1);  // of the words of `a` so far and the first j of `b`
  for (const int32_t word : a) {
    int64_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = lengths[j + 1];
      lengths[j + 1] = word == b[j] ? diagonal + 1 : std::max(above, lengths[j]);
      diagonal = above;
    }
  }
  return lengths.back();
}

}  // namespace

RougeScores rouge(std::string_view reference, std::string_view text) {
  WordNumbers numbers;
  const Words expected = numbers.of(reference), given = numbers.of(text);
  return {.rouge1 = rouge_n(expected, given, 1),
          .rouge2 = rouge_n(expected, given, 2),
          .rouge_l = rouge_score(longest_common_subsequence(expected, given), expected.size(),
                                 given.size())};
}

}  // namespace sftrun::observe
