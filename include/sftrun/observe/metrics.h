#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/core/file.h"

/// metrics.jsonl of a run directory: one JSON object per optimizer step and one per evaluation.
namespace sftrun::observe {

/// Values by name, in order.
using NamedValues = std::vector<std::pair<std::string, double>>;

/// Seconds of the parts of a step. Together they are `step_seconds`. The keys in the file are these
/// names with "_seconds".
struct StepParts {
  double data = 0, forward = 0, backward = 0, optimizer = 0;
  double communication = 0;  ///< waits for other ranks and for their collectives
  double other = 0;
};
/// The parts with their names, in the order in which they are shown.
std::array<std::pair<std::string_view, double>, 6> named_parts(const StepParts& parts);

/// One optimizer step. The keys in the file are these names.
struct TrainMetrics {
  int64_t step = 0;  ///< optimizer steps done, from 1
  double epoch = 0;  ///< fraction of passes over the data
  double loss = 0;   ///< mean over the terms of the global batch: label tokens, or pairs
  /// Load-balancing loss of the routers, before its coefficient: mean over micro-batches. Omitted
  /// if it is not used.
  std::optional<double> aux_loss;
  double grad_norm = 0;              ///< before clipping
  std::optional<double> loss_scale;  ///< fp16 runs only; omitted otherwise
  double learning_rate = 0;
  NamedValues
      part_rates;  ///< "learning_rate/projector": parts of the model that have rates of their own
  int64_t label_tokens = 0, tokens = 0;  ///< of the global batch
  int64_t examples = 0;                  ///< likewise; of objectives on pairs: pairs
  double tokens_per_second = 0, step_seconds = 0;
  /// Per rank: allocator bytes on CUDA, resident memory on CPU
  std::vector<uint64_t> peak_memory_bytes;
  std::vector<double> loss_per_rank;    ///< each rank's mean over its own terms
  std::vector<double> gpu_utilization;  ///< per rank, in percent; empty without GPUs
  std::optional<StepParts> parts;       ///< of rank 0; omitted if they were not measured
  /// Per rank: memory of the GPU in use, by all processes; resident memory on CPU
  std::vector<uint64_t> memory_used_bytes;
  /// Per rank, in percent of one processor since its last step: 200 is two processors
  std::vector<double> cpu_utilization;
  /// Means that the objective reports ("rewards/margins"), after `loss` in the file.
  NamedValues objective;
};

/// Scores of answers that were generated for the validation prompts: means over the answers.
struct AnswerMetrics {
  double rouge1 = 0, rouge2 = 0, rouge_l = 0;  ///< F-measures
  double exact_match = 0;
  int64_t num_answers = 0;
  double seconds = 0;
};

/// One evaluation after `step` optimizer steps.
struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0;
  bool has_loss = true;                   ///< false: answers have rewards, and no loss
  std::optional<double> eval_perplexity;  ///< null in the file if the loss is no cross-entropy
  NamedValues objective;                  ///< with the prefix "eval_" in the file
  NamedValues losses;                     ///< of each validation set, if there are several
  /// nullopt if no text was generated; `eval_rouge_l` is null in the file then.
  std::optional<AnswerMetrics> answers;
  double eval_seconds = 0;  ///< without the answers

  /// The keys and values of the file's line.
  nlohmann::ordered_json to_json() const;
  /// A value by its key in the file; "eval_SET_loss" is the loss of a validation set
  /// (config::is_loss_of_set).   @return nullopt: there is none, or several sets may be meant
  std::optional<double> value_of(const std::string& name) const;
};

/// Whether a line of metrics.jsonl is of an evaluation.   @param line an object of JSON
template <class Line>
bool is_evaluation_line(const Line& line) {
  return line.contains("eval_loss") || line.contains("eval_seconds");
}

/// The names that have a value, but for times and counts.
std::vector<std::string> names_of_values(const EvalMetrics& metrics);

/// Appends lines, each in one write. Numbers have the shortest form that reads back to the same
/// double; NaN and infinity are written as null. Not thread-safe.
class MetricsWriter {
 public:
  MetricsWriter() = default;  ///< closed: `write` does nothing; for ranks other than 0
  explicit MetricsWriter(const std::filesystem::path& path) : file_(path) {}
  void write(const TrainMetrics& metrics);
  void write(const EvalMetrics& metrics);
  void sync() { file_.sync(); }

 private:
  LineFile file_;
};

/// Removes the lines of steps after `step` from a metrics file, atomically, so that a resumed run
/// writes no step twice. Also removes an incomplete last line. Does nothing if there is no file.
/// @param keeps_evaluation false: the evaluation after `step` is removed, too
/// @throws DataError naming the line if an earlier line is not a metrics line
/// @return the step of the last line that stays; nullopt: none does
std::optional<int64_t> truncate_metrics_to_step(const std::filesystem::path& path, int64_t step,
                                                bool keeps_evaluation = true);

}  // namespace sftrun::observe
