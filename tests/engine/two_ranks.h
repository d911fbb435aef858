#pragma once

#include <functional>

#include "rank.h"
#include "rank_threads.h"
#include "sftrun/launch/launch_plan.h"

namespace sftrun::engine {

/// Two ranks of this process, connected over Gloo.
struct TwoRanks {
  TwoRanks() : second(first, env(1), 0) { first.take_place(env(0), 0); }

  launch::WorkerEnv env(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank,
            .local_world_size = 2,
            .master_port = port};
  }
  int run(const std::function<int(Rank&)>& body) {
    return run_rank_threads({&first, &second}, FailureContext{}, [&](Rank& rank) {
      rank.connect({}, at::kCPU);
      return body(rank);
    });
  }

  int port = launch::pick_free_port();
  Rank first, second;
};

}  // namespace sftrun::engine
