#pragma once

#include <csetjmp>
#include <cstddef>

namespace sftrun::images {

/// Runs `work(state)`, which may leave by longjmp(jump, 1): C libraries end a call so after an error.
/// Returns whether it came to its end.
///
/// Everything between here and longjmp must be C, or have no destructors to run: neither `work` nor
/// what it calls holds values that own something.
template <class State>
[[gnu::noinline]] bool guarded(std::jmp_buf& jump, void (*work)(State&), State& state) {
  if (setjmp(jump) != 0) return false;
  work(state);
  return true;
}

}  // namespace sftrun::images
