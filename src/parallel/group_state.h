#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "c10d_errors.h"
#include "call_trace.h"
#include "nccl_watch.h"
#include "sftrun/core/activity.h"
#include "sftrun/core/error.h"
#include "sftrun/parallel/group.h"

namespace sftrun::parallel {

/// A collective on its way.
struct StartedWork {
  c10::intrusive_ptr<c10d::Work> work;
  int64_t call = 0;  // of `Group::State::calls`
};

/// What a group communicates with.
struct Group::State {
  int rank = 0;                               // in the group
  std::vector<int> ranks = {0};               // of the run
  std::string where;                          // for errors: "rank 1 of 4, gloo, tp (ranks 0 and 1)"
  c10::intrusive_ptr<c10d::Backend> backend;  // null: one rank
  std::vector<StartedWork> pending;
  std::shared_ptr<CollectiveCounts> counts = std::make_shared<CollectiveCounts>();
  Activity* activity = nullptr;  // the communicator's; null: one rank
  int number = 0;                // of `Activity::name_group`; 0: all ranks

  // Of NCCL, else null:
  std::string key;  // the same on all ranks of the group
  std::shared_ptr<CallTrace> calls;
  NcclWatch* watch = nullptr;  // the communicator's

  /// Runs a collective and converts its failure to a CommError.
  template <typename Body>
  void guarded(const char* what, Body&& body) const {
    if (watch == nullptr)
      return run_guarded(activity, what, where, number, std::forward<Body>(body));
    watch->check();
    try {
      run_guarded(activity, what, where, number, std::forward<Body>(body));
    } catch (const CommError& error) {
      watch->fail(key, what, error.message());
    }
    watch->check();
  }

  /// @param body starts a collective and returns its work
  template <typename Body>
  StartedWork start(const char* what, Body&& body) const {
    StartedWork started;
    if (calls) started.call = calls->begin(what);
    guarded(what, [&] { started.work = body(); });
    if (calls) calls->returned(started.call);
    return started;
  }
  /// The current stream waits, with Gloo the host.
  void wait(const char* what, const StartedWork& started) const {
    guarded(what, [&] { started.work->wait(); });
    if (calls) calls->waited(started.call);
  }
};

}  // namespace sftrun::parallel
