#include "running_answers.h"

#include <c10/util/Exception.h>

#include <new>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {
namespace {

/// There may be no memory for the message either.
void log_missing_memory(const char* what) noexcept {
  try {
    log::error("out of memory: {}", what);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

RunningAnswers::RunningAnswers(const ServedModel& model, size_t num_rows, size_t number)
    : batch_(model.decoder, num_rows, hooks(), model.ranks, number),
      is_divided_(model.ranks != nullptr) {}

model::BatchHooks RunningAnswers::hooks() {
  return {
      .on_token = [this](size_t id, model::NewToken&& token) { return take(id, std::move(token)); },
      .on_finished = [this](size_t id, model::Generation&& answer) { end(id, std::move(answer)); },
      .on_prompt_scores =
          [this](size_t id, std::vector<model::TokenLogprobs>&& scores) {
            send_scores(id, std::move(scores));
          }};
}

uint64_t RunningAnswers::take_num_tokens() {
  return std::exchange(num_tokens_, 0);
}

void RunningAnswers::start(std::vector<std::unique_ptr<AnswerJob>> jobs) {
  is_used_ = true;
  guarded([&] {
    if (must_reset_) reset();
    add(jobs);
  });
  for (const std::unique_ptr<AnswerJob>& left : jobs)
    if (left != nullptr) left->channel->abandon();
}

void RunningAnswers::step() {
  // Asked once for each: a client may vanish at any moment.
  std::erase_if(jobs_, [](const auto& job) { return job.second->channel->is_cancelled(); });
  guarded([this] { generate(); });
}

void RunningAnswers::generate() {
  if (must_reset_) reset();
  batch_.drop([this](size_t id) { return !jobs_.contains(id); });
  if (batch_.num_active() > 0) batch_.step();
  if (batch_.num_active() == 0 && is_used_) reset();
}

void RunningAnswers::fail_all(const ApiError& error) {
  for (const auto& [id, job] : jobs_) job->fail(error);
  jobs_.clear();
  must_reset_ = true;
}

void RunningAnswers::abandon_all() noexcept {
  for (const auto& [id, job] : jobs_) job->channel->abandon();
  jobs_.clear();
  must_reset_ = true;
}

void RunningAnswers::reset() {
  batch_.reset();
  must_reset_ = is_used_ = false;
}

/// Takes the jobs; after an error some are left.
void RunningAnswers::add(std::vector<std::unique_ptr<AnswerJob>>& jobs) {
  std::vector<model::SequenceRequest> requests;
  requests.reserve(jobs.size());
  for (std::unique_ptr<AnswerJob>& job : jobs) {
    model::SequenceRequest request = std::move(job->request);
    request.prompt.index = next_id_++;
    jobs_[request.prompt.index] = std::move(job);
    requests.push_back(std::move(request));
  }
  batch_.add(std::move(requests));
}

void RunningAnswers::guarded(const std::function<void()>& body) {
  if (is_divided_) return guarded_on_all_ranks(body);
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    abandon_all();
    log_missing_memory(error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    abandon_all();
    log_missing_memory(error.what());
  } catch (const Error& error) {
    failed(error.message());
  } catch (const c10::Error& error) {
    failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    failed(error.what());
  }
}

void RunningAnswers::guarded_on_all_ranks(const std::function<void()>& body) {
  try {
    body();
  } catch (const model::NotFiniteError& error) {
    failed(error.message());
  }
}

void RunningAnswers::failed(const std::string& what) {
  log::error("generation failed: {}", what);
  fail_all({kFailed, what});
}

/// @return whether the answer goes on
bool RunningAnswers::take(size_t id, model::NewToken&& token) {
  AnswerJob& job = *jobs_.at(id);
  ++num_tokens_;
  AnswerToken answered;
  answered.token = token.token;
  if (token.logprobs) answered.first_char = job.text.place_of(token.token);
  answered.logprobs = std::move(token.logprobs);
  const bool goes_on = token.is_stop || job.text.add(token.token);
  AnswerEvent event = job.event();
  event.text = job.take_text(job.text.settled());
  event.tokens.push_back(std::move(answered));
  job.channel->send(std::move(event));
  return goes_on;
}

void RunningAnswers::end(size_t id, model::Generation&& answer) {
  AnswerJob& job = *jobs_.at(id);
  AnswerEvent event = job.event();
  event.text = job.take_text(job.text.text());
  event.finish_reason = answer.stopped ? "stop" : "length";
  event.scores = std::move(answer.scores);
  job.channel->send(std::move(event));
  jobs_.erase(id);
}

void RunningAnswers::send_scores(size_t id, std::vector<model::TokenLogprobs>&& scores) {
  const AnswerJob& job = *jobs_.at(id);
  AnswerEvent event = job.event();
  event.prompt_scores = std::move(scores);
  job.channel->send(std::move(event));
}

}  // namespace sftrun::serve
