#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "sftrun/core/file.h"

/// metrics.jsonl of a run directory: one JSON object per optimizer step and one per evaluation.
namespace sftrun::observe {

/// One optimizer step. Keys in the file are these names.
struct TrainMetrics {
  int64_t step = 0;  ///< optimizer steps done, from 1
  double epoch = 0;  ///< passes over the data done, a fraction
  double loss = 0;   ///< mean over the label tokens of the global batch
  /// Of the routers' load-balancing, before its coefficient: the mean over micro-batches; no key
  /// where it is not in use.
  std::optional<double> aux_loss;
  double grad_norm = 0;  ///< before clipping
  std::optional<double> loss_scale;  ///< of runs in fp16; no key in others
  double learning_rate = 0;
  int64_t label_tokens = 0, tokens = 0;  ///< of the global batch
  double tokens_per_second = 0, step_seconds = 0;
  std::vector<uint64_t> peak_memory_bytes;  ///< per rank: allocator bytes on CUDA, resident on CPU
  std::vector<double> loss_per_rank;        ///< each rank's mean over its own label tokens
  std::vector<double> gpu_utilization;      ///< per rank, in percent; empty without GPUs
};

/// One evaluation after `step` optimizer steps.
struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0, eval_perplexity = 0;
  std::optional<double> eval_rouge_l;  ///< null in the file when no text was generated
  double eval_seconds = 0;
};

/// Appends lines, each in one write. Numbers are written in the shortest form that reads back to
/// the same double; those that are not finite as null, which JSON has instead. Not thread-safe.
class MetricsWriter {
 public:
  MetricsWriter() = default;  ///< closed: `write` does nothing (ranks other than 0)
  explicit MetricsWriter(const std::filesystem::path& path) : file_(path) {}
  void write(const TrainMetrics& metrics);
  void write(const EvalMetrics& metrics);
  void sync() { file_.sync(); }

 private:
  LineFile file_;
};

/// Cuts a metrics file back to the lines of steps up to `step`, atomically, so that a resumed run
/// writes no step twice. A last line torn by a crash goes too. Does nothing if there is no file.
/// @throws DataError naming the line if an earlier line is not one of ours.
void truncate_metrics_to_step(const std::filesystem::path& path, int64_t step);

}  // namespace sftrun::observe
