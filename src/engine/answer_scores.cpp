#include "answer_scores.h"

#include "sftrun/core/strings.h"
#include "sftrun/observe/rouge.h"

namespace sftrun::engine {

AnswerScores score_answer(std::string_view reference, std::string_view answer) {
  const observe::RougeScores scores = observe::rouge(reference, answer);
  return {.rouge1 = scores.rouge1.fmeasure,
          .rouge2 = scores.rouge2.fmeasure,
          .rouge_l = scores.rouge_l.fmeasure,
          .exact_match = trim(reference) == trim(answer) ? 1.0 : 0.0};
}

void MeanAnswerScores::add(const AnswerScores& scores) {
  sum_.rouge1 += scores.rouge1;
  sum_.rouge2 += scores.rouge2;
  sum_.rouge_l += scores.rouge_l;
  sum_.exact_match += scores.exact_match;
  ++count_;
}

AnswerScores MeanAnswerScores::mean() const {
  if (count_ == 0) return {};
  const auto count = static_cast<double>(count_);
  return {sum_.rouge1 / count, sum_.rouge2 / count, sum_.rouge_l / count, sum_.exact_match / count};
}

}  // namespace sftrun::engine
