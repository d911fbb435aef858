#include "sftrun/core/clock.h"

#include <chrono>

namespace sftrun {
namespace {

template <class Clock>
double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

double monotonic_seconds() {
  return seconds<std::chrono::steady_clock>();
}

double unix_seconds() {
  return seconds<std::chrono::system_clock>();
}

}  // namespace sftrun
