#include "rank_threads.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "sftrun/core/log.h"
#include "sftrun/core/thread_log.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::engine {
namespace {

// How long ranks may take to notice that another one has failed
constexpr std::chrono::seconds kEnding{10};

/// The ranks of a process: how many still run, and the first failure.
class RankThreads {
 public:
  RankThreads(size_t num_ranks, const FailureContext& context)
      : running_(num_ranks), context_(context) {}

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
        const Failure failure = report_failure(context_, rank);
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
  const FailureContext& context_;
  std::optional<int> failure_;
};

}  // namespace

int run_rank_threads(const std::vector<Rank*>& ranks, const FailureContext& context,
                     const std::function<int(Rank&)>& body) {
  parallel::disable_flight_recorder();
  RankThreads threads(ranks.size(), context);
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

int run_stage_threads(Rank& main, const std::vector<int>& gpus, const FailureContext& context,
                      const std::function<int(Rank&)>& body) {
  const auto num_stages = static_cast<int>(gpus.size());
  const int threads = std::max(1, at::get_num_threads() / num_stages);
  const int port = num_stages > 1 ? launch::pick_free_port() : 0;
  const auto env_of = [&](int stage) {
    launch::WorkerEnv env = main.env();
    env.rank = env.local_rank = stage;
    env.world_size = env.local_world_size = num_stages;
    env.master_addr = "127.0.0.1";
    env.master_port = port;
    return env;
  };
  std::vector<std::unique_ptr<Rank>> others;
  for (int stage = 1; stage < num_stages; ++stage) {
    others.push_back(std::make_unique<Rank>(main, env_of(stage), gpus[static_cast<size_t>(stage)]));
  }
  main.take_place(env_of(0), gpus[0]);
  std::vector<Rank*> ranks = {&main};
  for (const auto& other : others) ranks.push_back(other.get());
  return run_rank_threads(ranks, context, [&](Rank& rank) {
    at::set_num_threads(threads);
    return body(rank);
  });
}

}  // namespace sftrun::engine
