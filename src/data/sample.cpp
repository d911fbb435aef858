#include "sftrun/data/sample.h"

#include <algorithm>

#include "tokenized_source.h"

namespace sftrun::data {
namespace {

void add_first(const config::RunConfig& config, const config::DataSource& source, SplitRole role,
               const TextModel& model, int64_t count, std::vector<Example>& examples) {
  constexpr int64_t kRecordsOfAnExample = 16;  // some carry no label, or are too long
  config::DataSource first = source;
  const int64_t enough = count * kRecordsOfAnExample;
  first.max_samples = std::min(source.max_samples.value_or(enough), enough);
  TokenizedSource records(config, first, role, model, /*num_threads=*/1);
  while (const auto block = records.next()) {
    for (const std::vector<Outcome>& record : block->records) {
      for (const Outcome& outcome : record) {
        if (outcome.example.tokens.empty()) continue;
        examples.push_back(outcome.example);
        if (--count == 0) return;
      }
    }
  }
}

}  // namespace

std::vector<Example> first_examples(const config::RunConfig& config,
                                    const std::vector<config::DataSource>& sources,
                                    bool is_validation, const TextModel& model, int64_t count) {
  const SplitRole role = is_validation ? SplitRole::kValidation : SplitRole::kTrain;
  std::vector<Example> examples;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto sets_left = static_cast<int64_t>(sources.size() - i);
    const int64_t wanted = (count - static_cast<int64_t>(examples.size())) / sets_left;
    if (wanted > 0) add_first(config, sources[i], role, model, wanted, examples);
  }
  return examples;
}

}  // namespace sftrun::data
