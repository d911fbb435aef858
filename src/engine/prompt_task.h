#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/data/dataset.h"
#include "sftrun/data/prompt.h"

namespace sftrun::engine {

/// Prompts of a data set that are answered `n` times each. Answers are numbered prompt by prompt. Not
/// thread-safe.
struct PromptTask {
  std::string name;  ///< the same on every rank, and used once
  const data::Dataset& data;
  const std::vector<int64_t>& prompts;  ///< examples of it
  size_t n = 1;
  uint64_t number = 0;  ///< its random numbers are others than those of other tasks
  int64_t step = 0;     ///< steps that are done then
  bool keeps_samples = false;
  std::map<size_t, nlohmann::ordered_json> parsed = {};  ///< by place among `prompts`

  size_t num_answers() const { return prompts.size() * n; }
  size_t group_of(size_t answer) const { return answer / n; }
  data::PromptTokens prompt_of(size_t answer) const;
  /// "file:line" of the prompt's record.
  std::string place_of(size_t answer) const { return data.place_of(prompts[group_of(answer)]); }
  /// Parsed once; the reference stays valid.
  const nlohmann::ordered_json& record_of(size_t answer);
};

}  // namespace sftrun::engine
