#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The usual faults of training on one's own answers, which the loss does not show.
namespace sftrun::train {

/// What a step's answers are like.
struct RolloutSigns {
  double silent_groups = 0;  ///< share of the groups whose rewards are all equal
  double cut_short = 0;      ///< share of the answers that reached their limit of tokens
  double entropy = 0;        ///< mean over tokens, in nats
  double reward = 0;         ///< mean over answers
};

/// Names a fault when it has lasted for some steps, once until it has gone. Not thread-safe.
class RolloutFaults {
 public:
  /// @return warnings, of which each names a fault and what to do
  std::vector<std::string> add(const RolloutSigns& signs);

 private:
  /// Steps in a row that have a fault.
  struct Watch {
    int64_t steps = 0;
    /// @return whether the fault is to be named now
    bool add(bool has_fault);
  };
  Watch silent_, cut_short_, collapsed_;
  std::optional<double> first_entropy_;
};

}  // namespace sftrun::train
