#pragma once

#include <cstdint>
#include <string_view>

/// How close generated answers are to reference answers.
namespace sftrun::engine {

/// Of one answer, or the means over several.
struct AnswerScores {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0;  ///< F-measures (rouge.h)
  double exact_match = 0;  ///< 1: the same text, but for white space at both ends
};

AnswerScores score_answer(std::string_view reference, std::string_view answer);

/// Means in the order in which answers are added.
class MeanAnswerScores {
 public:
  void add(const AnswerScores& scores);
  int64_t count() const { return count_; }
  AnswerScores mean() const;  ///< zeros without answers

 private:
  AnswerScores sum_;
  int64_t count_ = 0;
};

}  // namespace sftrun::engine
