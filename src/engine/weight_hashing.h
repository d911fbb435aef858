#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "sftrun/launch/worker_env.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::engine {

/// Hashes of a model's weights. One rank of each machine reads the files in a thread while the
/// model loads; the destructor stops it.
class WeightHashing {
 public:
  /// Begins, on the first rank of a machine.
  WeightHashing(std::shared_ptr<const weights::Checkpoint> checkpoint,
                const launch::WorkerEnv& env);

  /// @return the hashes, on every rank; nullopt if rank 0 was stopped
  /// @throws DataError; ConfigError naming a machine with different files
  std::optional<std::vector<weights::FileHash>> get(parallel::Communicator& comm,
                                                    const std::function<bool()>& is_stopped);

 private:
  bool reads() const { return env_.local_rank == 0 || env_.rank == 0; }
  /// Of this machine; empty when it was stopped.
  std::vector<weights::FileHash> wait(const std::function<bool()>& is_stopped);

  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  launch::WorkerEnv env_;
  std::promise<std::vector<weights::FileHash>> promise_;
  std::future<std::vector<weights::FileHash>> hashes_ = promise_.get_future();
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace sftrun::engine
