#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/objectives.h"

/// Summary of a run over all processes that worked on it.
namespace sftrun::observe {

struct StepLoss {
  int64_t step = 0;
  double loss = 0;
};

/// The metric by which an objective is judged, where the loss says little: "reward".
struct ShownValues {
  std::string word;  ///< empty: the objective has none
  std::optional<StepLoss> first, last;
  std::optional<StepLoss> first_eval, last_eval;
};

struct RunSummary {
  std::optional<StepLoss> first, last;  ///< training loss
  std::optional<StepLoss> first_eval, best_eval, last_eval;
  std::vector<StepLoss> evals;  ///< validation loss of every evaluation
  ShownValues shown;
  int64_t tokens = 0;              ///< over all steps
  int64_t examples = 0;            ///< likewise; 0: the file does not say
  double seconds = 0;              ///< over all steps, without evaluation
  uint64_t peak_memory_bytes = 0;  ///< of the rank with the highest peak
};

/// Reads metrics.jsonl; lines that are not metrics are ignored. Empty if there is no file.
/// @param shown of the run's objective, for `RunSummary::shown`
RunSummary read_run_summary(const std::filesystem::path& metrics,
                            const config::ShownMetric& shown = {});

/// One line each, for the console.
std::vector<std::string> lines_of(const RunSummary& summary);

}  // namespace sftrun::observe
