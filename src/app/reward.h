#pragma once

#include <cstdint>
#include <string>

#include "sftrun/config/rewards.h"
#include "sftrun/config/run_config.h"

namespace sftrun::app {

/// `sftrun reward`: judges the answers of a file.
struct RewardOptions {
  config::RewardSpecs specs;
  config::DataSource input;
  std::string output;      ///< file; "-": standard output
  std::string answer_key;  ///< empty: "generated", else "completion"
  int64_t batch_size = 64;
  bool json = false;       ///< print a summary
  bool overwrite = false;  ///< what an earlier command has judged is judged again
};
int run_reward(const RewardOptions& options);

}  // namespace sftrun::app
