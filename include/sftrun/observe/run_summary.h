#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// What a whole run came to, of all the processes that it took.
namespace sftrun::observe {

struct StepLoss {
  int64_t step = 0;
  double loss = 0;
};

struct RunSummary {
  std::optional<StepLoss> first, last;  ///< of training
  std::optional<StepLoss> first_eval, best_eval, last_eval;
  int64_t tokens = 0;              ///< of all steps
  double seconds = 0;              ///< of all steps, without evaluation
  uint64_t peak_memory_bytes = 0;  ///< of the rank with the most
};

/// Reads metrics.jsonl; lines that are not ours are passed over. Empty where there is no file.
RunSummary read_run_summary(const std::filesystem::path& metrics);

/// For the console: one line each.
std::vector<std::string> lines_of(const RunSummary& summary);

}  // namespace sftrun::observe
