#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example_store.h"

/// Advantages of sampled answers: how much better they are than others to the same prompt.
namespace sftrun::data {

/// What a data set's rewards teach.
struct Advantages {
  std::vector<double> of_examples;  ///< a record's own advantage, or from the rewards of its group
  int64_t num_groups = 0;           ///< of examples with a reward
  int64_t num_alone = 0;            ///< groups of one answer, whose advantage is 0
  int64_t num_equal = 0;            ///< larger groups whose rewards are all equal
};

/// (reward - mean of the group) / (spread + 1e-4), with the standard deviation of a sample (n - 1), as
/// in trl/trainer/grpo_trainer.py. `scale`: the spread of the group, of all rewards, or none: the
/// difference itself. Groups are told apart by file, too.
Advantages advantages_of(const ExampleStore& examples, config::ScaleRewards scale);

}  // namespace sftrun::data
