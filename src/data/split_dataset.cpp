#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/rng.h"
#include "sftrun/data/dataset.h"

namespace sftrun::data {
namespace {

constexpr uint64_t kSplitStream =
    0x73706c69742d7631;  // separate from the streams of epochs, which begin at 0

/// Numbers records over all parts; examples of one record share its number, and so do sampled answers
/// to the same prompt.
std::vector<int64_t> record_numbers(const Dataset& all) {
  std::vector<int64_t> numbers;
  int64_t next = -1;
  for (const DatasetPart& part : all.parts()) {
    int64_t last = -1;
    std::map<std::pair<int32_t, uint64_t>, int64_t> of_groups;
    for (int64_t i = part.begin; i < part.end; ++i) {
      const StoredExample& stored = all.examples().stored(i);
      if (stored.group != 0) {
        const auto [known, is_new] = of_groups.try_emplace({stored.file, stored.group}, next + 1);
        next += is_new ? 1 : 0;
        numbers.push_back(known->second);
        continue;
      }
      // Numbers of records are of the part; they stand in order.
      if (i == part.begin || stored.record != last) ++next;
      last = stored.record;
      numbers.push_back(next);
    }
  }
  return numbers;
}

int64_t num_distinct(const std::vector<int64_t>& numbers) {
  return numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end()) + 1;
}

/// `count` of the records, by a partial Fisher-Yates shuffle.
std::vector<bool> choose(int64_t num_records, int64_t count, uint64_t seed) {
  std::vector<int64_t> records(static_cast<size_t>(num_records));
  std::iota(records.begin(), records.end(), 0);
  std::vector<bool> chosen(records.size());
  RandomStream random(seed, kSplitStream);
  for (int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<uint64_t>(num_records - i);
    std::swap(records[i], records[i + static_cast<int64_t>(random.next_below(left))]);
    chosen[static_cast<size_t>(records[i])] = true;
  }
  return chosen;
}

Dataset part_of(const Dataset& all, const std::vector<int64_t>& indices, DatasetStats stats,
                int64_t num_records, const std::string& name) {
  stats.num_records = num_records;
  stats.num_examples = static_cast<int64_t>(indices.size());
  for (const int64_t index : indices) {
    const StoredExample& example = all.examples().stored(index);
    stats.num_tokens += example.length;
    stats.num_label_tokens += example.label_tokens;
    const auto judgement = static_cast<Judgement>(example.judgement);
    stats.num_desirable += judgement == Judgement::kDesirable ? 1 : 0;
    stats.num_undesirable += judgement == Judgement::kUndesirable ? 1 : 0;
    stats.longest = std::max<int64_t>(stats.longest, example.length);
  }
  std::vector<DatasetPart> parts = all.parts();
  for (DatasetPart& part : parts) {
    const auto place = [&](int64_t index) {
      return std::lower_bound(indices.begin(), indices.end(), index) - indices.begin();
    };
    part.begin = place(part.begin);
    part.end = place(part.end);
  }
  return {all.examples().select(indices), std::move(parts), stats,
          Fingerprint().add(all.fingerprint()).add(name).hex()};
}

}  // namespace

int64_t num_split_off(double val_split, int64_t num_records) {
  const double wanted = val_split < 1 ? static_cast<double>(num_records) * val_split : val_split;
  const auto num_val = std::max<int64_t>(std::llround(wanted), 1);
  if (num_val >= num_records) {
    throw DataError(
        fmt::format("data.val_split = {} leaves nothing to train on: there are {} usable records",
                    val_split, num_records),
        "data.val_split", "lower it, or replace it by data.val, a validation file");
  }
  return num_val;
}

std::vector<bool> held_out(const std::vector<int64_t>& records, double val_split, uint64_t seed) {
  const int64_t num_records = num_distinct(records);
  const std::vector<bool> in_val = choose(num_records, num_split_off(val_split, num_records), seed);
  std::vector<bool> examples;
  for (const int64_t record : records) examples.push_back(in_val[static_cast<size_t>(record)]);
  return examples;
}

std::pair<Dataset, Dataset> split_dataset(const Dataset& all, double val_split, uint64_t seed) {
  SFTRUN_CHECK(val_split > 0);
  const std::vector<int64_t> records = record_numbers(all);
  const std::vector<bool> in_val = held_out(records, val_split, seed);
  const int64_t num_val = num_split_off(val_split, num_distinct(records));
  std::vector<int64_t> train, val;
  for (size_t i = 0; i < records.size(); ++i)
    (in_val[i] ? val : train).push_back(static_cast<int64_t>(i));
  DatasetStats left_out = all.stats();
  left_out.num_tokens = left_out.num_label_tokens = left_out.longest = 0;
  left_out.num_desirable = left_out.num_undesirable = 0;
  const std::string name = fmt::format("{} {}", val_split, seed);
  return {part_of(all, train, left_out, left_out.num_records - num_val, "train " + name),
          part_of(all, val, {}, num_val, "val " + name)};
}

}  // namespace sftrun::data
