#pragma once

#include "import/rule.h"

namespace sftrun::config::importing {

/// Rule of a key that keeps a part of the run's state in host memory or on a disk. The one place
/// that says what this version makes of it.
constexpr ImportRule offload(std::string_view key) {
  return refused(key,
                 "set it to none (false): this version keeps everything in device memory. "
                 "`parallel.strategy: fsdp`, `train.gradient_checkpointing: true` and "
                 "`tuning.mode: qlora` save memory",
                 "none");
}

}  // namespace sftrun::config::importing
