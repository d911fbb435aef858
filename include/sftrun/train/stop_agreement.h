#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sftrun/parallel/communicator.h"

namespace sftrun::train {

/// Lets all ranks leave a loop in the same iteration when any of them is asked to stop: a rank that
/// went on would wait in a collective for the others. They exchange their codes before the first
/// iteration and then about every `kEvery_s`; on a slow machine that is before every iteration.
class StopAgreement {
 public:
  static constexpr double kEvery_s = 0.5;
  /// The values of all ranks that agree, by rank.   @param values of this rank
  using Gather = std::function<std::vector<std::vector<double>>(const std::vector<double>& values)>;

  /// @param own_code the exit code of a stop that this rank was asked for; 0: none
  /// @param min_apart iterations between two exchanges: an exchange empties a pipeline
  StopAgreement(parallel::Communicator& comm, std::function<int()> own_code, int64_t min_apart = 1);
  /// Between some ranks of a run.
  StopAgreement(Gather gather, std::function<int()> own_code, int64_t min_apart = 1);

  /// Every rank calls it before each iteration.
  /// @return the largest code of all ranks, on all of them; not 0: leave the loop
  int next();
  int agreed() const { return code_; }  ///< what `next` returned last

 private:
  double own_pace() const;
  void exchange();

  Gather gather_;  // empty: one rank
  std::function<int()> own_code_;
  int64_t min_apart_, apart_, left_ = 0;   // iterations between exchanges, and until the next one
  double last_end_ = 0, before_last_ = 0;  // ends of exchanges on the monotonic clock; 0: none
  int64_t last_apart_ = 0;                 // iterations between these two
  int code_ = 0;
};

}  // namespace sftrun::train
