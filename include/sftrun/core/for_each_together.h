#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace sftrun {

/// Does work for each number below `count`, on several threads of its own. For waiting, not for computing.
/// @param num_threads at most; 0 counts as 1
/// @param has_failed becomes true with the first failure, after which no more work begins
/// @throws what the first failure threw
void for_each_together(size_t count, size_t num_threads, std::atomic<bool>& has_failed,
                       const std::function<void(size_t)>& work);

}  // namespace sftrun
