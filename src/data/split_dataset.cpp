#include <algorithm>
#include <cmath>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/rng.h"
#include "sftrun/data/dataset.h"

namespace sftrun::data {
namespace {

constexpr uint64_t kSplitStream =
    0x73706c69742d7631;  // apart from the streams of epochs, which count from 0

std::vector<int64_t> records_of(const std::vector<Example>& examples) {
  std::vector<int64_t> records;  // examples stand in record order
  for (const Example& example : examples) {
    if (records.empty() || records.back() != example.record) records.push_back(example.record);
  }
  return records;
}

/// `count` of the records, by a partial Fisher-Yates shuffle.
std::set<int64_t> choose(std::vector<int64_t> records, int64_t count, uint64_t seed) {
  RandomStream random(seed, kSplitStream);
  for (int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<uint64_t>(static_cast<int64_t>(records.size()) - i);
    std::swap(records[i], records[i + static_cast<int64_t>(random.next_below(left))]);
  }
  return {records.begin(), records.begin() + count};
}

Dataset part_of(const Dataset& all, std::vector<Example> examples, DatasetStats stats,
                int64_t num_records, const std::string& name) {
  stats.num_records = num_records;
  stats.num_examples = static_cast<int64_t>(examples.size());
  for (const Example& example : examples) {
    const auto length = static_cast<int64_t>(example.tokens.size());
    stats.num_tokens += length;
    stats.num_label_tokens += example.label_tokens;
    stats.longest = std::max(stats.longest, length);
  }
  return {std::move(examples), stats, Fingerprint().add(all.fingerprint()).add(name).hex(),
          all.format()};
}

}  // namespace

std::pair<Dataset, Dataset> split_dataset(Dataset all, double val_split, uint64_t seed) {
  SFTRUN_CHECK(val_split > 0);
  const std::vector<int64_t> records = records_of(all.examples());
  const auto num_records = static_cast<int64_t>(records.size());
  const double wanted = val_split < 1 ? static_cast<double>(num_records) * val_split : val_split;
  const auto num_val = std::max<int64_t>(std::llround(wanted), 1);
  if (num_val >= num_records) {
    throw DataError(
        fmt::format("data.val_split = {} leaves nothing to train on: there are {} usable records",
                    val_split, num_records),
        "data.val_split", "lower it, or give a validation file as data.val");
  }
  const std::set<int64_t> in_val = choose(records, num_val, seed);
  std::vector<Example> train, val;
  for (const Example& example : all.examples()) {
    (in_val.contains(example.record) ? val : train).push_back(example);
  }
  DatasetStats left_out = all.stats();
  left_out.num_tokens = left_out.num_label_tokens = left_out.longest = 0;
  const std::string name = fmt::format("{} {}", val_split, seed);
  Dataset first =
      part_of(all, std::move(train), left_out, left_out.num_records - num_val, "train " + name);
  Dataset second = part_of(all, std::move(val), {}, num_val, "val " + name);
  return {std::move(first), std::move(second)};
}

}  // namespace sftrun::data
