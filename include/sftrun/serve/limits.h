#pragma once

#include <cstddef>
#include <cstdint>

namespace sftrun::serve {

struct Limits {
  size_t batch_size = 8;     ///< most answers of a model that are generated at the same time
  size_t max_waiting = 256;  ///< most answers that wait for their turn
  uint64_t cache_bytes = 0;  ///< most memory of the key-value caches
};

struct Load {
  size_t num_active = 0, num_waiting = 0;
  uint64_t num_tokens = 0;  ///< generated since the start
};

}  // namespace sftrun::serve
