#include "question.h"

namespace sftrun::engine {

std::optional<Question> question_of(const data::ExampleStore& examples, int64_t index,
                                    const tokenizer::Tokenizer& tokenizer) {
  const data::ExampleView example = examples[index];
  const auto has_label = [&](int64_t token) {
    return example.label(token - 1) != data::kIgnoreIndex;
  };
  int64_t end = example.size();
  while (end > 1 && !has_label(end - 1)) --end;
  int64_t begin = end;
  while (begin > 1 && has_label(begin - 1)) --begin;
  if (begin == end || begin == 1) return std::nullopt;
  Question question;
  for (int64_t i = 0; i < begin; ++i) question.prompt.ids.push_back(example.token(i));
  if (example.stored->num_media > 0)
    for (data::SequenceMedia& image : examples.media_of(index))
      if (image.end <= begin) question.prompt.media.push_back(std::move(image));
  std::vector<tokenizer::TokenId> answer;
  for (int64_t i = begin; i < end; ++i) answer.push_back(example.token(i));
  question.reference = tokenizer.decode(answer, /*skip_special_tokens=*/true);
  return question;
}

}  // namespace sftrun::engine
