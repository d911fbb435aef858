#include "answer_job.h"

#include <algorithm>
#include <utility>

namespace sftrun::serve {

int64_t AnswerJob::longest() const {
  return static_cast<int64_t>(request.prompt.tokens.size()) + request.options->max_new_tokens;
}

std::string AnswerJob::take_text(std::string_view settled) {
  std::string fresh(settled.substr(std::min(num_sent, settled.size())));
  num_sent = std::max(num_sent, settled.size());
  return fresh;
}

AnswerEvent AnswerJob::event() const {
  AnswerEvent event;
  event.choice = choice;
  return event;
}

void AnswerJob::fail(const ApiError& error) const {
  AnswerEvent failed = event();
  failed.error = error;
  channel->send(std::move(failed));
}

std::vector<std::unique_ptr<AnswerJob>> jobs_of(const ServedModel& model,
                                                const CompletionRequest& request,
                                                const std::shared_ptr<AnswerChannel>& channel) {
  auto options = std::make_shared<model::SamplingOptions>(request.sampling);
  tokenizer::Stops stops = tokenizer::divide_stops(*model.text.tokenizer, request.stops);
  for (const auto& tokens : {model.text.stop_ids, stops.tokens})
    options->stop_tokens.insert(options->stop_tokens.end(), tokens.begin(), tokens.end());
  const tokenizer::GeneratedText empty(*model.text.tokenizer, std::move(stops.texts));
  std::vector<std::unique_ptr<AnswerJob>> jobs;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    for (int64_t choice = 0; choice < request.num_choices; ++choice) {
      // Member by member: where memory runs out within nested braces, GCC 12 destroys parts twice.
      auto job = std::make_unique<AnswerJob>(model, empty);
      job->channel = channel;
      job->choice = jobs.size();
      job->request.prompt.tokens = request.prompts[i];
      if (i < request.prompt_images.size()) job->request.prompt.media = request.prompt_images[i];
      job->request.prompt.stream = jobs.size();
      job->request.options = options;
      job->request.num_logprobs = request.num_logprobs;
      job->request.scores_prompt = request.echo && request.num_logprobs.has_value();
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

}  // namespace sftrun::serve
