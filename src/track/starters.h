#pragma once

#include <memory>

#include "tracker.h"

namespace sftrun::track {

/// The tracker of the run's row; null, after a warning: what it needs is missing.
std::unique_ptr<Tracker> start_tracker(TrackedRun run);

}  // namespace sftrun::track
