#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/train/lasting_fault.h"
#include "sftrun/train/rollout_answers.h"

/// The usual faults of training on one's own answers, which the loss does not show.
namespace sftrun::train {

/// Names a fault when it has lasted for some steps, once until it has gone. Not thread-safe.
class RolloutFaults {
 public:
  /// @return warnings, of which each names a fault and what to do
  std::vector<std::string> add(const AnswerStatistics& answers, const GroupStatistics& groups);

 private:
  LastingFault silent_, cut_short_, collapsed_;
  std::optional<double> first_entropy_;
};

}  // namespace sftrun::train
