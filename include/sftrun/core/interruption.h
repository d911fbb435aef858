#pragma once

#include <exception>

/// A stop in the middle of long work that has nothing to save: tokenising, hashing, loading.
namespace sftrun {

/// Thrown by `interruption_point`. Nothing has failed, so it is no Error.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted by a stop"; }
};

/// While one lives, `interruption_point` throws in every thread of the process as soon as
/// `requested` returns true. Several threads may have one, with the same `requested`.
class Interruptible {
 public:
  /// @param requested called by any thread, often
  explicit Interruptible(bool (*requested)());
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

/// For loops of long work. Without an Interruptible it does nothing. Costs two loads from memory.
/// @throws Interrupted
void interruption_point();

}  // namespace sftrun
