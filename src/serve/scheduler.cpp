#include "sftrun/serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "answer_job.h"
#include "running_answers.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/serve/http_status.h"
#include "waiting_answers.h"

namespace sftrun::serve {
namespace {

constexpr auto kMaxWait = std::chrono::milliseconds(100);  // between two looks at `should_stop`

/// A line about the speed every ten seconds, if tokens were generated.
class SpeedLog {
 public:
  void report(const Load& load) {
    constexpr double kLogS = 10;
    const double now = monotonic_seconds(), passed = now - last_;
    if (passed < kLogS) return;
    const uint64_t num_new = load.num_tokens - std::exchange(num_reported_, load.num_tokens);
    last_ = now;
    if (num_new == 0) return;
    log::info("{:.0f} tokens/s, {} in progress, {} waiting", static_cast<double>(num_new) / passed,
              counted(load.num_active, "answer"), load.num_waiting);
  }

 private:
  double last_ = monotonic_seconds();
  uint64_t num_reported_ = 0;
};

}  // namespace

Scheduler::Scheduler(const ServedModels& models, const Limits& limits)
    : limits_(limits), models_(models), waiting_(std::make_unique<WaitingAnswers>(limits)) {
  for (const auto& model : models) {
    running_.emplace(model.get(),
                     std::make_unique<RunningAnswers>(*model, limits.batch_size, running_.size()));
  }
  first_ = running_.at(models.at(0).get()).get();
}

Scheduler::~Scheduler() = default;

std::shared_ptr<AnswerChannel> Scheduler::submit(const ServedModel& model,
                                                 const CompletionRequest& request) {
  const std::shared_lock lock(models_mutex_);
  if (std::ranges::none_of(models_, [&](const auto& one) { return one.get() == &model; }))
    throw ApiError(kNotFound, fmt::format("{} has been unloaded", model.id), "model",
                   "model_not_found");
  // Before they take memory. Others may come meanwhile, so that `add` asks again.
  waiting_->require_room(request.prompts.size() * static_cast<size_t>(request.num_choices), model);
  for (const std::vector<int32_t>& prompt : request.prompts)
    require_memory(model, static_cast<int64_t>(prompt.size()) + request.sampling.max_new_tokens);
  auto channel = std::make_shared<AnswerChannel>();
  waiting_->add(jobs_of(model, request, channel));
  return channel;
}

void Scheduler::require_memory(const ServedModel& model, int64_t length) const {
  const uint64_t bytes = running_.at(&model)->batch().bytes_of_sequence(length);
  if (bytes <= limits_.cache_bytes) return;
  const bool is_scored = model.decoder.arch().score.has_value();
  throw ApiError(kBadRequest,
                 fmt::format("{} {} tokens, which need {} of the key-value cache; it may take {}",
                             is_scored ? "a text has" : "prompt and answer may have", length,
                             format_bytes(bytes), format_bytes(limits_.cache_bytes)),
                 is_scored ? "input" : "max_tokens", "context_length_exceeded");
}

Load Scheduler::load() const {
  return waiting_->load();
}

/// Whether a row is free, and the caches fit when `job` starts with those that are `chosen`.
bool Scheduler::fits(const AnswerJob& job, const Chosen& chosen) const {
  const RunningAnswers& own = *running_.at(job.model);
  uint64_t bytes = 0;
  for (const auto& [model, running] : running_) {
    size_t num = 0;
    int64_t longest = 0;
    if (const auto with = chosen.find(running.get()); with != chosen.end()) {
      num = with->second.size();
      for (const std::unique_ptr<AnswerJob>& other : with->second)
        longest = std::max(longest, other->longest());
    }
    if (running.get() == &own) {
      if (own.batch().num_free() <= num) return false;
      ++num;
      longest = std::max(longest, job.longest());
    }
    bytes += running->batch().cache_bytes(num, longest);
  }
  return bytes <= limits_.cache_bytes;
}

/// Starts waiting answers in the order of arrival. The first one that does not fit waits, and those
/// behind it, so that a long one is not passed by again and again.
void Scheduler::start_waiting() {
  Chosen chosen;
  try {
    waiting_->offer([&](std::unique_ptr<AnswerJob>& next) {
      if (!fits(*next, chosen)) return false;
      chosen[running_.at(next->model).get()].push_back(std::move(next));
      return true;
    });
  } catch (const std::bad_alloc&) {
    for (const auto& [running, jobs] : chosen)
      for (const std::unique_ptr<AnswerJob>& job : jobs) job->channel->abandon();
    throw;
  }
  for (auto& [running, jobs] : chosen) running->start(std::move(jobs));
}

/// Starts what waits and fits, and generates a token of each answer.
void Scheduler::step() {
  start_waiting();
  size_t num_active = 0;
  uint64_t num_tokens = 0;
  for (const auto& [model, running] : running_) {
    running->step();
    num_active += running->num_active();
    num_tokens += running->take_num_tokens();
  }
  waiting_->report(num_active, num_tokens);
}

void Scheduler::rest(const std::function<bool()>& should_stop) {
  first_->rest();
  while (!should_stop() && !waiting_->wait(kMaxWait)) do_work();
  first_->wake();
}

ServedModels Scheduler::models() const {
  const std::shared_lock lock(models_mutex_);
  return models_;
}

void Scheduler::between_steps(const std::function<void()>& work) {
  std::packaged_task<void()> task(work);
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(work_mutex_);
    if (is_stopped_) throw ApiError(kUnavailable, "the server is stopping");
    work_.push_back(std::move(task));
  }
  try {
    done.get();
  } catch (const std::future_error&) {  // nobody did it
    throw ApiError(kUnavailable, "the server is stopping");
  }
}

void Scheduler::do_work() {
  std::vector<std::packaged_task<void()>> tasks;
  {
    const std::lock_guard lock(work_mutex_);
    tasks.swap(work_);
  }
  for (std::packaged_task<void()>& task : tasks) task();
  if (!tasks.empty()) forget_removed();  // also while no answer is written
}

void Scheduler::refuse_work() {
  const std::lock_guard lock(work_mutex_);
  is_stopped_ = true;
  work_.clear();
}

void Scheduler::put(std::shared_ptr<ServedModel> model) {
  auto running = std::make_unique<RunningAnswers>(*model, limits_.batch_size, running_.size());
  const std::unique_lock lock(models_mutex_);
  running_.emplace(model.get(), std::move(running));
  const auto same = std::ranges::find(models_, model->id, [](const auto& one) { return one->id; });
  if (same == models_.end()) return models_.push_back(std::move(model));
  removed_.push_back(std::exchange(*same, std::move(model)));
}

void Scheduler::remove(const ServedModel& model) {
  const std::unique_lock lock(models_mutex_);
  const auto same = std::ranges::find(models_, &model, [](const auto& one) { return one.get(); });
  removed_.push_back(*same);
  models_.erase(same);
}

/// Models that were removed and whose last answer has ended.
void Scheduler::forget_removed() {
  std::erase_if(removed_, [&](const std::shared_ptr<ServedModel>& model) {
    if (running_.at(model.get())->num_active() > 0 || waiting_->have_any_of(*model)) return false;
    const std::unique_lock lock(models_mutex_);
    running_.erase(model.get());
    return true;
  });
}

void Scheduler::run(const std::function<bool()>& should_stop) {
  try {
    run_steps(should_stop);
  } catch (...) {  // a lost rank, for example: clients learn it before the process ends
    refuse_work();
    fail_all({kUnavailable, "the server has failed and is stopping"});
    throw;
  }
  refuse_work();
  fail_all({kUnavailable, "the server is stopping"});
  first_->finish();
}

void Scheduler::run_steps(const std::function<bool()>& should_stop) {
  constexpr auto kRest = std::chrono::milliseconds(20);
  SpeedLog speed;
  while (!should_stop()) {
    do_work();
    try {
      step();
      forget_removed();
      speed.report(load());
    } catch (const std::bad_alloc&) {  // another thread may have taken all, and give it back soon
      if (first_->is_divided()) throw;
      for (const auto& [model, running] : running_) running->abandon_all();
      std::this_thread::sleep_for(kRest);
    }
    if (load().num_active == 0 && !waiting_->wait(kMaxWait)) rest(should_stop);
  }
}

void Scheduler::follow(const ServedModels& models, const Limits& limits) {
  std::vector<std::unique_ptr<model::GenerationBatch>> batches;
  std::vector<model::GenerationBatch*> by_number;
  for (const auto& model : models) {
    batches.push_back(std::make_unique<model::GenerationBatch>(
        model->decoder, limits.batch_size, model::BatchHooks{}, model->ranks, batches.size()));
    by_number.push_back(batches.back().get());
  }
  model::GenerationBatch::follow(by_number);
}

void Scheduler::fail_all(const ApiError& error) {
  waiting_->stop(error);
  for (const auto& [model, running] : running_) running->fail_all(error);
}

}  // namespace sftrun::serve
