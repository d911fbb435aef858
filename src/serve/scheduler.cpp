#include "sftrun/serve/scheduler.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {
namespace {

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

/// One answer, from its request to its last token.
struct Scheduler::Job {
  Job(const ServedModel& served, const tokenizer::GeneratedText& empty)
      : model(&served), text(empty) {}

  const ServedModel* model;
  std::shared_ptr<AnswerChannel> channel;
  size_t choice = 0;
  model::SequenceRequest request;
  tokenizer::GeneratedText text;
  size_t num_sent = 0;  ///< bytes of the text

  int64_t longest() const {
    return static_cast<int64_t>(request.prompt.tokens.size()) + request.options->max_new_tokens;
  }

  /// What of the text has not been sent.
  std::string take_text(std::string_view settled) {
    std::string fresh(settled.substr(std::min(num_sent, settled.size())));
    num_sent = std::max(num_sent, settled.size());
    return fresh;
  }
};

void Scheduler::fail(const Job& job, const ApiError& error) {
  AnswerEvent event;
  event.choice = job.choice;
  event.error = error;
  job.channel->send(std::move(event));
}

/// The answers of one model that are generated now.
class Scheduler::Lane {
 public:
  /// @param number of the lane
  Lane(const ServedModel& model, size_t num_rows, size_t number)
      : batch_(model.decoder, num_rows,
               {.on_token = [this](size_t id,
                                   model::NewToken&& token) { return take(id, std::move(token)); },
                .on_finished = [this](size_t id,
                                      model::Generation&& answer) { finish(id, answer.stopped); },
                .on_prompt_scores =
                    [this](size_t id, std::vector<model::TokenLogprobs>&& scores) {
                      Job& job = *jobs_.at(id);
                      AnswerEvent event;
                      event.choice = job.choice;
                      event.prompt_scores = std::move(scores);
                      job.channel->send(std::move(event));
                    }},
               model.ranks, number),
        is_divided_(model.ranks != nullptr) {}

  const model::GenerationBatch& batch() const { return batch_; }
  size_t num_active() const { return jobs_.size(); }
  uint64_t take_num_tokens() { return std::exchange(num_tokens_, 0); }

  void start(std::vector<std::unique_ptr<Job>> jobs) {
    is_used_ = true;
    guarded([&] {
      if (must_reset_) reset();
      add(jobs);
    });
    for (const std::unique_ptr<Job>& left : jobs)
      if (left != nullptr) left->channel->abandon();
  }

  /// Generates a token of each answer that is still wanted.
  void step() {
    // Asked once for each: a client may vanish at any moment.
    std::erase_if(jobs_, [](const auto& job) { return job.second->channel->is_cancelled(); });
    guarded([this] {
      if (must_reset_) reset();
      batch_.drop([this](size_t id) { return !jobs_.contains(id); });
      if (batch_.num_active() > 0) batch_.step();
      if (batch_.num_active() == 0 && is_used_) reset();
    });
  }

  bool is_divided() const { return is_divided_; }
  /// For the other ranks of a divided model.
  void rest() { batch_.rest(); }
  void wake() { batch_.wake(); }
  void finish() { batch_.finish(); }

  void fail_all(const ApiError& error) {
    for (const auto& [id, job] : jobs_) fail(*job, error);
    jobs_.clear();
    must_reset_ = true;
  }
  void abandon_all() noexcept {
    for (const auto& [id, job] : jobs_) job->channel->abandon();
    jobs_.clear();
    must_reset_ = true;
  }

 private:
  void reset() {
    batch_.reset();
    must_reset_ = is_used_ = false;
  }

  /// Takes the jobs; after an error some are left.
  void add(std::vector<std::unique_ptr<Job>>& jobs) {
    std::vector<model::SequenceRequest> requests;
    requests.reserve(jobs.size());
    for (std::unique_ptr<Job>& job : jobs) {
      model::SequenceRequest request = std::move(job->request);
      request.prompt.index = next_id_++;
      jobs_[request.prompt.index] = std::move(job);
      requests.push_back(std::move(request));
    }
    batch_.add(std::move(requests));
  }

  /// A failure ends the answers of this lane, not the server; but the server if other ranks have a
  /// part of the model and do not know of it.
  template <class Body>
  void guarded(Body&& body) {
    if (is_divided_) return guarded_on_all_ranks(body);
    try {
      body();
    } catch (const c10::OutOfMemoryError& error) {
      abandon_all();
      failed_without_memory(error.what_without_backtrace());
    } catch (const std::bad_alloc& error) {
      abandon_all();
      failed_without_memory(error.what());
    } catch (const Error& error) {
      failed(error.message());
    } catch (const c10::Error& error) {
      failed(error.what_without_backtrace());
    } catch (const std::exception& error) {
      failed(error.what());
    }
  }

  template <class Body>
  void guarded_on_all_ranks(Body&& body) {
    try {
      body();
    } catch (const model::NotFiniteError& error) {
      failed(error.message());
    }
  }

  /// There may be none for the message either.
  static void failed_without_memory(const char* what) noexcept {
    try {
      log::error("out of memory: {}", what);
    } catch (const std::bad_alloc&) {
    }
  }

  void failed(const std::string& what) {
    log::error("generation failed: {}", what);
    fail_all({kFailed, what});
  }

  bool take(size_t id, model::NewToken&& token) {
    Job& job = *jobs_.at(id);
    ++num_tokens_;
    AnswerToken answered;
    answered.token = token.token;
    if (token.logprobs) answered.first_char = job.text.place_of(token.token);
    answered.logprobs = std::move(token.logprobs);
    const bool goes_on = token.is_stop || job.text.add(token.token);
    AnswerEvent event;
    event.choice = job.choice;
    event.text = job.take_text(job.text.settled());
    event.tokens.push_back(std::move(answered));
    job.channel->send(std::move(event));
    return goes_on;
  }

  void finish(size_t id, bool stopped) {
    Job& job = *jobs_.at(id);
    AnswerEvent event;
    event.choice = job.choice;
    event.text = job.take_text(job.text.text());
    event.finish_reason = stopped ? "stop" : "length";
    job.channel->send(std::move(event));
    jobs_.erase(id);
  }

  std::map<size_t, std::unique_ptr<Job>> jobs_;
  model::GenerationBatch batch_;
  size_t next_id_ = 0;
  uint64_t num_tokens_ = 0;
  bool is_used_ = false;     ///< the cache has memory
  bool must_reset_ = false;  ///< the batch has rows of failed answers; emptying it takes memory
  bool is_divided_;          ///< other ranks have parts of the model
};

Scheduler::Scheduler(const std::vector<std::unique_ptr<ServedModel>>& models, const Limits& limits)
    : limits_(limits) {
  for (const auto& model : models)
    lanes_.emplace(model.get(), std::make_unique<Lane>(*model, limits.batch_size, lanes_.size()));
  first_lane_ = lanes_.at(models.at(0).get()).get();
}

Scheduler::~Scheduler() = default;

std::shared_ptr<AnswerChannel> Scheduler::submit(const ServedModel& model,
                                                 const CompletionRequest& request) {
  const size_t num_answers = request.prompts.size() * static_cast<size_t>(request.num_choices);
  {
    const std::lock_guard lock(mutex_);
    require_room(num_answers);  // before they take memory
  }
  auto options = std::make_shared<model::SamplingOptions>(request.sampling);
  tokenizer::Stops stops = tokenizer::divide_stops(*model.text.tokenizer, request.stops);
  for (const auto& tokens : {model.text.stop_ids, stops.tokens})
    options->stop_tokens.insert(options->stop_tokens.end(), tokens.begin(), tokens.end());
  const tokenizer::GeneratedText empty(*model.text.tokenizer, std::move(stops.texts));
  auto channel = std::make_shared<AnswerChannel>();
  std::vector<std::unique_ptr<Job>> jobs;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    for (int64_t choice = 0; choice < request.num_choices; ++choice) {
      // Member by member: where memory runs out within nested braces, GCC 12 destroys parts twice.
      auto job = std::make_unique<Job>(model, empty);
      job->channel = channel;
      job->choice = jobs.size();
      job->request.prompt.tokens = prompt;
      job->request.prompt.stream = jobs.size();
      job->request.options = options;
      job->request.num_logprobs = request.num_logprobs;
      job->request.scores_prompt = request.echo && request.num_logprobs.has_value();
      require_memory(model, job->longest());
      jobs.push_back(std::move(job));
    }
  }
  const std::lock_guard lock(mutex_);
  require_room(num_answers);  // others have come meanwhile
  for (std::unique_ptr<Job>& job : jobs) waiting_.push_back(std::move(job));
  submitted_.notify_one();
  return channel;
}

void Scheduler::require_memory(const ServedModel& model, int64_t length) const {
  const uint64_t bytes =
      lanes_.at(&model)->batch().bytes_of_token() * static_cast<uint64_t>(length);
  if (bytes <= limits_.cache_bytes) return;
  throw ApiError(kBadRequest,
                 fmt::format("prompt and answer may have {} tokens, which need {} of the key-value "
                             "cache; it may take {}",
                             length, format_bytes(bytes), format_bytes(limits_.cache_bytes)),
                 "max_tokens", "context_length_exceeded");
}

void Scheduler::require_room(size_t num_answers) const {
  if (is_stopped_) throw ApiError(kUnavailable, "the server is stopping");
  const size_t most = limits_.batch_size + limits_.max_waiting;
  if (num_answers > most) {
    throw ApiError(kBadRequest,
                   fmt::format("the request asks for {}; at most {} are allowed at a time",
                               counted(num_answers, "answer"), most),
                   "prompt");
  }
  if (num_active_ + waiting_.size() + num_answers <= most) return;
  throw ApiError(kTooMany,
                 fmt::format("the server is busy: {} in progress and {} waiting; retry later, or "
                             "start it with a larger --max-waiting than {}",
                             counted(num_active_, "answer"), waiting_.size(), limits_.max_waiting),
                 {}, "server_busy");
}

Load Scheduler::load() const {
  const std::lock_guard lock(mutex_);
  return {num_active_, waiting_.size(), num_tokens_};
}

/// Whether a row is free, and the caches fit when `job` starts with those that are `chosen`.
bool Scheduler::fits(const Job& job, const Chosen& chosen) const {
  const Lane& own = *lanes_.at(job.model);
  uint64_t bytes = 0;
  for (const auto& [model, lane] : lanes_) {
    size_t num = 0;
    int64_t longest = 0;
    if (const auto with = chosen.find(lane.get()); with != chosen.end()) {
      num = with->second.size();
      for (const std::unique_ptr<Job>& other : with->second)
        longest = std::max(longest, other->longest());
    }
    if (lane.get() == &own) {
      if (own.batch().num_free() <= num) return false;
      ++num;
      longest = std::max(longest, job.longest());
    }
    bytes += lane->batch().cache_bytes(num, longest);
  }
  return bytes <= limits_.cache_bytes;
}

/// Starts waiting answers in the order of arrival. The first one that does not fit waits, and those
/// behind it, so that a long one is not passed by again and again.
void Scheduler::start_waiting() {
  Chosen chosen;
  try {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty()) {
      Job& next = *waiting_.front();
      if (!next.channel->is_cancelled()) {
        if (!fits(next, chosen)) break;
        chosen[lanes_.at(next.model).get()].push_back(std::move(waiting_.front()));
        ++num_active_;
      }
      waiting_.pop_front();
    }
  } catch (const std::bad_alloc&) {
    for (const auto& [lane, jobs] : chosen)
      for (const std::unique_ptr<Job>& job : jobs) job->channel->abandon();
    throw;
  }
  for (auto& [lane, jobs] : chosen) lane->start(std::move(jobs));
}

/// Starts what waits and fits, and generates a token of each answer.
void Scheduler::step() {
  start_waiting();
  size_t num_active = 0;
  uint64_t num_tokens = 0;
  for (const auto& [model, lane] : lanes_) {
    lane->step();
    num_active += lane->num_active();
    num_tokens += lane->take_num_tokens();
  }
  const std::lock_guard lock(mutex_);
  num_active_ = num_active;
  num_tokens_ += num_tokens;
}

bool Scheduler::wait_for_work() {
  constexpr auto kMaxWait = std::chrono::milliseconds(100);
  std::unique_lock lock(mutex_);
  return submitted_.wait_for(lock, kMaxWait, [this] { return !waiting_.empty(); });
}

void Scheduler::rest(const std::function<bool()>& should_stop) {
  first_lane_->rest();
  while (!should_stop() && !wait_for_work()) {
  }
  first_lane_->wake();
}

void Scheduler::run(const std::function<bool()>& should_stop) {
  constexpr auto kRest = std::chrono::milliseconds(20);
  SpeedLog speed;
  while (!should_stop()) {
    try {
      step();
      speed.report(load());
    } catch (const std::bad_alloc&) {  // another thread may have taken all, and give it back soon
      if (first_lane_->is_divided()) throw;
      for (const auto& [model, lane] : lanes_) lane->abandon_all();
      std::this_thread::sleep_for(kRest);
    }
    if (load().num_active == 0 && !wait_for_work()) rest(should_stop);
  }
  fail_all({kUnavailable, "the server is stopping"});
  first_lane_->finish();
}

void Scheduler::follow(const std::vector<std::unique_ptr<ServedModel>>& models,
                       const Limits& limits) {
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
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  for (const auto& [model, lane] : lanes_) lane->fail_all(error);
  for (const std::unique_ptr<Job>& job : waiting_) fail(*job, error);
  waiting_.clear();
  num_active_ = 0;
}

}  // namespace sftrun::serve
