#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/deal.h"

/// Global batches of data that are tokenized during training (data.streaming).
namespace sftrun::data {

/// The batch of one optimizer step.
struct StepBatch {
  ExampleStore examples;
  std::vector<Bin> bins;          ///< over `examples`
  Deal deal;                      ///< of `bins`; empty: in order
  std::vector<SourceFile> files;  ///< indexed by `StoredExample::file`
  int64_t label_tokens = 0, tokens = 0;
  std::set<int64_t> lost = {};  ///< of `examples`: without labels, see make_batch
  /// What is known of the step before it is computed, by name
  std::vector<std::pair<std::string, double>> metrics = {};
};

/// Records are read in windows of data.shuffle_buffer, in the order of the files. With several data
/// sets, the share of each in a window follows from its weight and (estimated) size. The examples
/// of a window are packed together and their bins are shuffled. At its end a data set starts again.
///
/// The batches depend only on data, seed and settings, not on ranks or resuming. The next window is
/// prepared in the background.
class BatchStream {
 public:
  /// @param position of an earlier stream of the same data; null: from the beginning
  BatchStream(const config::RunConfig& config, const TextModel& model, int num_threads,
              const nlohmann::ordered_json& position);
  ~BatchStream();
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  /// @throws DataError as load_dataset, for the records read
  StepBatch next();
  /// For each of `by` the `num_bins` bins of the present window with most of it.
  std::vector<StepBatch> largest(int64_t num_bins, std::span<const BinCost> by) const;
  /// The position after the last batch.
  nlohmann::ordered_json position() const;
  double epochs() const;  ///< passes over the data so far; estimated if there are several data sets
  int64_t num_bad_records() const;  ///< left out so far (data.bad_records: skip)
  /// Each file and a hash of its size, beginning and end.
  const std::vector<std::pair<std::string, std::string>>& file_hashes() const {
    return file_hashes_;
  }
  /// A hash of the files' sizes, beginnings and ends, of tokenizer and template.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  class Windows;
  struct Window;
  size_t seek(const nlohmann::ordered_json& position);
  void use_next_window();
  void add_bin(const Bin& of_window, std::vector<Example>& examples, StepBatch& batch) const;

  int64_t global_batch_size_;
  std::string fingerprint_;
  std::vector<std::pair<std::string, std::string>> file_hashes_;
  int64_t bad_before_ = 0;  // records left out up to the last window
  std::unique_ptr<Windows> windows_;
  std::shared_ptr<const Window> window_;
  size_t used_ = 0;  // of the window's bins
  std::future<std::shared_ptr<const Window>> coming_;
};

}  // namespace sftrun::data
