#include "sftrun/core/interruption.h"

#include <atomic>

namespace sftrun {
namespace {

std::atomic<int> num_interruptible{0};
std::atomic<bool (*)()> stop_is_requested{nullptr};

}  // namespace

Interruptible::Interruptible(bool (*requested)()) {
  stop_is_requested = requested;
  ++num_interruptible;
}

Interruptible::~Interruptible() {
  --num_interruptible;
}

void interruption_point() {
  if (num_interruptible.load(std::memory_order_relaxed) == 0) return;
  const auto requested = stop_is_requested.load();
  if (requested != nullptr && requested()) throw Interrupted();
}

}  // namespace sftrun
