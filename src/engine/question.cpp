#include "question.h"

#include "sftrun/data/last_answer.h"

namespace sftrun::engine {

std::optional<Question> question_of(const data::ExampleStore& examples, int64_t index,
                                    const tokenizer::Tokenizer& tokenizer) {
  const data::ExampleView example = examples[index];
  const std::optional<data::AnswerSpan> span = data::last_answer(example);
  if (!span) return std::nullopt;
  Question question{.prompt = data::prompt_until(examples, index, span->begin), .reference = {}};
  std::vector<tokenizer::TokenId> answer;
  for (int64_t i = span->begin; i < span->end; ++i) answer.push_back(example.token(i));
  question.reference = tokenizer.decode(answer, /*skip_special_tokens=*/true);
  return question;
}

}  // namespace sftrun::engine
