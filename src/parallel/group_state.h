#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "c10d_errors.h"
#include "sftrun/core/activity.h"
#include "sftrun/core/error.h"
#include "sftrun/parallel/group.h"

namespace sftrun::parallel {

/// What a group communicates with.
struct Group::State {
  int rank = 0;                               // in the group
  std::vector<int> ranks = {0};               // of the run
  std::string where;                          // for errors: "rank 1 of 4, gloo, tp (ranks 0 and 1)"
  c10::intrusive_ptr<c10d::Backend> backend;  // null: one rank
  std::vector<c10::intrusive_ptr<c10d::Work>> pending;
  std::shared_ptr<CollectiveCounts> counts = std::make_shared<CollectiveCounts>();
  Activity* activity = nullptr;  // the communicator's; null: one rank
  int number = 0;                // of `Activity::name_group`; 0: all ranks

  /// Runs a collective and converts its failure to a CommError.
  template <typename Body>
  void guarded(const char* what, Body&& body) const {
    run_guarded(activity, what, where, number, std::forward<Body>(body));
  }
};

}  // namespace sftrun::parallel
