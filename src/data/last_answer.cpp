#include "sftrun/data/last_answer.h"

#include <utility>

namespace sftrun::data {

std::optional<AnswerSpan> last_answer(const ExampleView& example) {
  int64_t end = example.size();
  while (end > 1 && !example.has_label(end - 1)) --end;
  int64_t begin = end;
  while (begin > 1 && example.has_label(begin - 1)) --begin;
  if (begin == end || begin == 1) return std::nullopt;
  return AnswerSpan{begin, end};
}

PromptTokens prompt_until(const ExampleStore& examples, int64_t index, int64_t end) {
  const ExampleView example = examples[index];
  PromptTokens prompt;
  for (int64_t i = 0; i < end; ++i) prompt.ids.push_back(example.token(i));
  if (example.stored->num_media > 0)
    for (SequenceMedia& media : examples.media_of(index))
      if (media.end <= end) prompt.media.push_back(std::move(media));
  return prompt;
}

}  // namespace sftrun::data
