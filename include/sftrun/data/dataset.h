#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

/// Records on disk to examples in memory.
namespace sftrun::data {

/// The text side of a model, as the data pipeline needs it.
struct TextModel {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none
  text::RenderOptions render_defaults;                      ///< bos/eos texts
};

enum class RecordFormat { kMessages, kPromptCompletion, kAlpaca, kText };

struct DatasetStats {
  int64_t num_records = 0, num_examples = 0, num_dropped_too_long = 0, num_truncated = 0, num_without_labels = 0;
  int64_t num_tokens = 0, num_label_tokens = 0, longest = 0;
};

class Dataset {
 public:
  const std::vector<Example>& examples() const { return examples_; }
  const DatasetStats& stats() const { return stats_; }
  const std::string& fingerprint() const { return fingerprint_; }  ///< of contents, tokenizer, template and options
  RecordFormat format() const { return format_; }

  std::vector<Example> examples_;
  DatasetStats stats_;
  std::string fingerprint_;
  RecordFormat format_ = RecordFormat::kText;
};

/// Reads, renders, tokenises and masks a JSONL file (threads: `num_threads`), keeping record order.
/// @throws DataError with file:line for malformed or unusable records; for an empty file; when no example carries a label.
Dataset load_dataset(const config::RunConfig& config, const std::filesystem::path& path, const TextModel& model,
                     int num_threads);

/// Splits off a validation set of `fraction` (or, from 1 up, that many examples), the same for a given seed.
std::pair<Dataset, Dataset> split_dataset(Dataset all, double val_split, uint64_t seed);

}  // namespace sftrun::data
