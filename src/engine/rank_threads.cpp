#include "rank_threads.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "commands.h"
#include "sftrun/core/log.h"
#include "sftrun/core/thread_log.h"

namespace sftrun::engine {
namespace {

// How long ranks may take to notice that another one has failed
constexpr std::chrono::seconds kEnding{10};

/// The ranks of a process: how many still run, and the first failure.
class RankThreads {
 public:
  RankThreads(size_t num_ranks, const nlohmann::ordered_json& request)
      : running_(num_ranks), request_(request) {}

  /// @return the exit code of the body
  int run(Rank& rank, const std::function<int(Rank&)>& body) {
    int code = 0;
    try {
      code = body(rank);
    } catch (...) {
      code = fail(rank);
    }
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_all();
    return code;
  }

  std::optional<int> failure() const { return failure_; }

 private:
  /// In a `catch` clause. Later failures follow from the first one and are not reported.
  int fail(Rank& rank) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) {
        const Failure failure = report_failure("worker", request_);
        failure_ = failure.code;
        rank.abandon(failure.text);
      } else {
        rank.disconnect();
        return *failure_;
      }
    }
    rank.disconnect();
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, kEnding, [&] { return running_ == 1; })) {
      log::flush();
      ::_exit(*failure_);
    }
    return *failure_;
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  size_t running_;
  const nlohmann::ordered_json& request_;
  std::optional<int> failure_;
};

}  // namespace

int run_rank_threads(const std::vector<Rank*>& ranks, const nlohmann::ordered_json& request,
                     const std::function<int(Rank&)>& body) {
  RankThreads threads(ranks.size(), request);
  std::vector<std::jthread> others;
  for (size_t i = 1; i < ranks.size(); ++i) {
    others.emplace_back([&, rank = ranks[i]] {
      const log::ErrorsOfThread only_errors;
      threads.run(*rank, body);
    });
  }
  const int code = threads.run(*ranks.front(), body);
  others.clear();  // joins
  return threads.failure().value_or(code);
}

}  // namespace sftrun::engine
