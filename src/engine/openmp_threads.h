#pragma once

#include <optional>

/// libgomp ends the process where it cannot start a thread: that is found out, or done, before.
namespace sftrun::engine {

/// Whether so many threads more can run at once. Another thread may take what they need afterwards.
bool can_start_threads(int num_threads);

/// Starts the threads with which the calling thread computes: later loops start none. Of one thread
/// of a process.
/// @param wanted with the calling one; nullopt: as many as OMP_NUM_THREADS says
/// @param by_flag --threads says so, for advice
/// @throws OutOfMemoryError if there is no memory for them, or a limit forbids them
void start_threads(std::optional<int> wanted, bool by_flag);

}  // namespace sftrun::engine
