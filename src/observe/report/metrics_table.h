#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

/// metrics.jsonl as columns.
namespace sftrun::observe {

/// Lines of one kind, training or evaluation. All columns have the length of `steps`; values that are
/// missing or not finite are NaN.
struct MetricsColumns {
  std::vector<int64_t> steps;  ///< ascending
  std::map<std::string, std::vector<double>> values;
  /// Values per rank: a column for each rank, or of more than kMaxRanks the lowest, the median and
  /// the highest.
  std::map<std::string, std::vector<std::vector<double>>> per_rank;
  std::map<std::string, size_t> num_ranks;  ///< by the keys of `per_rank`

  static constexpr size_t kMaxRanks = 8;

  bool empty() const { return steps.empty(); }
  /// The column of `key`; nullptr: no line has a number there.
  const std::vector<double>* find(const std::string& key) const;
};

struct MetricsTable {
  MetricsColumns training, evaluation;
  std::vector<size_t> unreadable_lines;  ///< line numbers, from 1: not JSON, or without a step
  bool ends_within_line = false;         ///< the last line has no end, because it is being written
};

/// Reads a metrics file of any size line by line. Steps that appear twice (of a run that older
/// versions resumed) are taken from the later line. Empty if there is no file.
/// @throws DataError for a special file
MetricsTable read_metrics_table(const std::filesystem::path& metrics);

}  // namespace sftrun::observe
