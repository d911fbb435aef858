#include "scored_texts.h"

#include <algorithm>
#include <utility>

#include "answers.h"

namespace sftrun::serve {

ScoredTexts::ScoredTexts(const ScoringRequest& request, const ServedModel& model, std::string id,
                         int64_t created)
    : request_(request),
      model_(model),
      id_(std::move(id)),
      created_(created),
      scores_(request.texts.prompts.size()),
      num_unfinished_(scores_.size()) {}

void ScoredTexts::add(const AnswerEvent& event) {
  if (event.finish_reason.empty()) return;
  scores_[event.choice] = event.scores;
  --num_unfinished_;
}

/// As vLLM has it: the label is that of the largest value, also of several labels.
Json ScoredTexts::entry(size_t text) const {
  const spec::ScoreSpec& head = *model_.decoder.arch().score;
  const std::vector<float>& scores = scores_[text];
  const std::vector<double> values = request_.use_activation
                                         ? activated(scores, head)
                                         : std::vector<double>(scores.begin(), scores.end());
  Json entry = {{"index", text}};
  if (request_.task->object != nullptr) entry["object"] = request_.task->object;
  switch (request_.task->task) {
    case ScoringTask::kClassify: {
      const auto largest = std::max_element(scores.begin(), scores.end()) - scores.begin();
      entry["label"] = head.name_of(largest);
      entry["probs"] = values;
      entry["num_classes"] = values.size();
      break;
    }
    case ScoringTask::kScore:
      entry["score"] = values.at(0);
      break;
    case ScoringTask::kPool:
      entry["data"] = values;
      break;
  }
  return entry;
}

std::string ScoredTexts::whole() const {
  Json data = Json::array();
  size_t num_tokens = 0;
  for (size_t text = 0; text < scores_.size(); ++text) {
    data.push_back(entry(text));
    num_tokens += request_.texts.prompts[text].size();
  }
  return dumped({{"id", id_},
                 {"object", "list"},
                 {"created", created_},
                 {"model", model_.id},
                 {"data", std::move(data)},
                 {"usage",
                  {{"prompt_tokens", num_tokens},
                   {"total_tokens", num_tokens},
                   {"completion_tokens", 0},
                   {"prompt_tokens_details", Json()}}}});
}

}  // namespace sftrun::serve
