#pragma once

#include <exception>
#include <functional>

#include "rank.h"
#include "sftrun/core/error.h"

namespace sftrun::engine {

/// What a program or a server of the user threw on this rank. The ranks agree first that the run ends,
/// and its last complete step is kept; then it is thrown.
class HeldFailure {
 public:
  /// @param rank whose stop is the cause if it was asked for one   @param rank outlives this object
  explicit HeldFailure(Rank& rank) : rank_(rank) {}

  /// @return 0; the exit code of a stop of this rank, or of the failure that is held from now on
  int guard(const std::function<void()>& work) {
    try {
      work();
      return 0;
    } catch (const Error&) {
      if (const int code = rank_.stop_exit_code()) return code;
      failure_ = std::current_exception();
      return static_cast<int>(ExitCode::kWorkerFailed);
    }
  }
  void throw_held() const {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  Rank& rank_;
  std::exception_ptr failure_;  // null: none
};

}  // namespace sftrun::engine
