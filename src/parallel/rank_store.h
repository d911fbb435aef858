#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "sftrun/core/activity.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::parallel {

/// What connected ranks tell each other through the key-value store. Waits poll it, so that a signal
/// or a lost launcher is noticed, and end when a rank has called `abandon`.
class RankStore {
 public:
  static constexpr const char* kFailure = "failure";  ///< key: why a rank has abandoned the run

  /// @param where for errors: "rank 1 of 4, gloo"   @param activity records waits; must outlive this
  RankStore(c10::intrusive_ptr<c10d::Store> keys, const Identity& identity, std::string where,
            Activity& activity);

  const c10::intrusive_ptr<c10d::Store>& keys() const { return keys_; }

  // As the functions of `Communicator`.
  void barrier(const std::string& name);
  void await_call(int rank);
  void call();
  void abandon(const std::string& why) noexcept;
  std::string broadcast(const std::string& name, const std::string& text);
  int64_t add(const std::string& name, int64_t amount);
  /// The rank that hosts the store waits for the others: they may still be polling it.
  void leave();

 private:
  template <typename Body>
  std::string failure_while(std::chrono::milliseconds between, Body&& is_closed);
  template <typename Body>
  void guarded(const char* what, Body&& body);

  c10::intrusive_ptr<c10d::Store> keys_;
  int rank_, world_size_;
  std::string where_;
  Activity& activity_;
  std::map<int, int64_t> num_heard_;  // calls of other ranks
};

}  // namespace sftrun::parallel
