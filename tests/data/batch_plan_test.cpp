#include "sftrun/data/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "packing.h"
#include "sftrun/core/rng.h"

namespace sftrun::data {
namespace {

std::vector<int64_t> uniform_lengths(int64_t count, int64_t longest, uint64_t seed) {
  RandomStream random(seed, 0);
  std::vector<int64_t> lengths(static_cast<size_t>(count));
  for (int64_t& length : lengths) {
    length = 1 + static_cast<int64_t>(random.next_below(static_cast<uint64_t>(longest)));
  }
  return lengths;
}

/// Log-normal, as chat data are: median about 250 tokens, a long tail cut at `longest`.
std::vector<int64_t> chat_lengths(int64_t count, int64_t longest, uint64_t seed) {
  RandomStream random(seed, 0);
  std::vector<int64_t> lengths(static_cast<size_t>(count));
  for (int64_t& length : lengths) {
    length =
        std::clamp<int64_t>(std::llround(std::exp(5.5 + 0.9 * random.next_normal())), 8, longest);
  }
  return lengths;
}

BatchPlan plan_for(const std::vector<int64_t>& lengths, BatchPlanOptions options) {
  return {lengths, lengths, options};
}

std::vector<Bin> all_bins(const BatchPlan& plan, int64_t epoch) {
  std::vector<Bin> bins;
  for (int64_t step = 0; step < plan.steps_per_epoch(epoch); ++step)
    for (Bin& bin : plan.global_batch(epoch, step)) bins.push_back(std::move(bin));
  return bins;
}

/// Tokens over the tokens that the bins could hold.
double fill(const BatchPlan& plan, const std::vector<int64_t>& lengths, int64_t max_seq_len) {
  const std::vector<Bin> bins = all_bins(plan, 0);
  int64_t tokens = 0;
  for (const Bin& bin : bins)
    for (const int64_t example : bin) tokens += lengths[static_cast<size_t>(example)];
  return static_cast<double>(tokens) / static_cast<double>(std::ssize(bins) * max_seq_len);
}

void expect_every_example_once(const std::vector<Bin>& bins, size_t num_examples) {
  std::vector<int> seen(num_examples, 0);
  for (const Bin& bin : bins)
    for (const int64_t example : bin) ++seen.at(static_cast<size_t>(example));
  for (size_t i = 0; i < num_examples; ++i) ASSERT_EQ(seen[i], 1) << "example " << i;
}

ExampleStore examples_of(const std::vector<int64_t>& lengths) {
  std::vector<Example> examples;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Example example{.record = static_cast<int64_t>(i)};
    for (int64_t t = 0; t < lengths[i]; ++t) {
      example.tokens.push_back(static_cast<int32_t>(1000 * i + static_cast<size_t>(t)));
    }
    example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
    example.labels.push_back(kIgnoreIndex);
    example.label_tokens = lengths[i] - 1;
    examples.push_back(std::move(example));
  }
  return ExampleStore::in_memory(examples);
}

class BatchPlanSizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(BatchPlanSizes, EveryExampleOnceWithinCapacity) {
  const auto lengths = uniform_lengths(GetParam(), 512, 7);
  for (const bool packing : {true, false}) {
    for (const bool shuffle : {true, false}) {
      const BatchPlan plan = plan_for(
          lengths,
          {.max_seq_len = 512, .global_batch_size = 7, .packing = packing, .shuffle = shuffle});
      const auto bins = all_bins(plan, 3);
      expect_every_example_once(bins, lengths.size());
      for (const Bin& bin : bins) {
        int64_t tokens = 0;
        for (const int64_t example : bin) tokens += lengths[static_cast<size_t>(example)];
        EXPECT_LE(tokens, 512);
        EXPECT_FALSE(bin.empty());
        EXPECT_TRUE(packing || bin.size() == 1);
      }
    }
  }
}
// 8191 … 8193 and 20000: around the packing window.
INSTANTIATE_TEST_SUITE_P(Counts, BatchPlanSizes,
                         ::testing::Values(0, 1, 2, 6, 7, 8, 1000, 8191, 8192, 8193, 20000));

/// Pairs of examples are packed, shuffled, weighted and counted as one, and stay in order.
TEST(BatchPlan, KeepsDocumentsTogether) {
  const auto lengths = uniform_lengths(2000, 128, 5);
  for (const bool packing : {true, false}) {
    for (const double weight : {1.0, 2.0}) {
      BatchPlanOptions options{.max_seq_len = 128,
                               .bin_tokens = 200,
                               .global_batch_size = 4,
                               .packing = packing,
                               .documents_together = 2};
      options.groups = {{0, 1000, 1}, {1000, 2000, weight}};
      const BatchPlan plan = plan_for(lengths, options);
      const auto bins = all_bins(plan, 1);
      std::vector<int> seen(lengths.size(), 0);
      int64_t total = 0;
      for (const Bin& bin : bins) {
        ASSERT_EQ(bin.size() % 2, 0U);
        EXPECT_TRUE(packing || bin.size() == 2);
        int64_t tokens = 0;
        for (size_t i = 0; i < bin.size(); ++i) {
          ++seen.at(static_cast<size_t>(bin[i]));
          EXPECT_EQ(bin[i] % 2, static_cast<int64_t>(i % 2));
          EXPECT_TRUE(i % 2 == 0 || bin[i] == bin[i - 1] + 1);
          tokens += lengths[static_cast<size_t>(bin[i])];
        }
        EXPECT_TRUE(tokens <= 200 || bin.size() == 2) << tokens;
        total += tokens;
      }
      EXPECT_EQ(plan.label_tokens(bins), total);  // here every token carries a label
      for (size_t i = 0; i < seen.size(); ++i)
        ASSERT_EQ(seen[i], i < 1000 ? 1 : static_cast<int>(weight)) << i;
      EXPECT_TRUE(packing || bins.size() == static_cast<size_t>(500 + 500 * weight));
    }
  }
}

TEST(BatchPlan, GroupsPairsByTheirLengths) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 64; ++i) lengths.insert(lengths.end(), {1 + i % 8, 64 - i % 8});
  for (int64_t i = 0; i < 64; ++i) lengths.insert(lengths.end(), {1, 1});
  const BatchPlan plan = plan_for(lengths, {.max_seq_len = 64,
                                            .global_batch_size = 64,
                                            .packing = false,
                                            .group_by_length = true,
                                            .documents_together = 2});
  ASSERT_EQ(plan.steps_per_epoch(0), 2);
  for (int64_t step = 0; step < 2; ++step) {
    int64_t short_pairs = 0;
    for (const Bin& bin : plan.global_batch(0, step)) short_pairs += bin[0] >= 128 ? 1 : 0;
    EXPECT_TRUE(short_pairs == 0 || short_pairs == 64) << short_pairs;
  }
}

/// Documents 2i and 2i + 1 of a micro-batch are those of pair i.
TEST(BatchPlan, MakesBatchesOfPairs) {
  const std::vector<int64_t> lengths = {3, 4, 2, 5, 1, 6};
  const ExampleStore examples = examples_of(lengths);
  const BatchPlan plan = plan_for(
      lengths,
      {.max_seq_len = 8, .global_batch_size = 3, .packing = false, .documents_together = 2});
  const auto bins = plan.global_batch(0, 0);
  const Batch batch = make_batch(examples, bins, 1, 2);
  ASSERT_EQ(batch.cu_seqlens.size(), 5U);
  for (size_t document = 0; document < 4; ++document) {
    const int64_t example = bins[1 + document / 2][document % 2];
    EXPECT_EQ(batch.cu_seqlens[document + 1] - batch.cu_seqlens[document],
              lengths[static_cast<size_t>(example)]);
    EXPECT_EQ(batch.tokens[static_cast<size_t>(batch.cu_seqlens[document])], 1000 * example);
  }
  EXPECT_EQ(batch.document_keys, (std::vector<int64_t>{2, 3, 4, 5}));
}

TEST(BatchPlan, FillsBinsOnRealisticLengths) {
  for (const int64_t max_seq_len : {1024, 2048, 8192}) {
    const auto lengths = chat_lengths(20000, max_seq_len, 11);
    const BatchPlan plan = plan_for(lengths, {.max_seq_len = max_seq_len, .global_batch_size = 16});
    EXPECT_GT(fill(plan, lengths, max_seq_len), 0.98) << max_seq_len;
    EXPECT_LE(fill(plan, lengths, max_seq_len), 1.0);
  }
}

TEST(BatchPlan, IsAPureFunctionOfSeedAndEpoch) {
  const auto lengths = chat_lengths(3000, 1024, 5);
  const BatchPlanOptions options{.max_seq_len = 1024, .global_batch_size = 8, .seed = 9};
  const BatchPlan a = plan_for(lengths, options), b = plan_for(lengths, options);
  const auto later = all_bins(a, 4);
  EXPECT_EQ(all_bins(a, 0), all_bins(b, 0));
  EXPECT_EQ(all_bins(b, 4), later);  // whatever was asked for before
  EXPECT_NE(all_bins(a, 0), all_bins(a, 1));
  BatchPlanOptions other = options;
  other.seed = 10;
  EXPECT_NE(all_bins(plan_for(lengths, other), 0), all_bins(a, 0));
}

TEST(BatchPlan, KeepsFileOrderWithoutShuffle) {
  const BatchPlan plan =
      plan_for({5, 5, 5, 5, 5}, {.max_seq_len = 10, .global_batch_size = 2, .shuffle = false});
  EXPECT_EQ(all_bins(plan, 0), (std::vector<Bin>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(all_bins(plan, 1), all_bins(plan, 0));
}

TEST(BatchPlan, LastGlobalBatchIsShorter) {
  const BatchPlan plan = plan_for(std::vector<int64_t>(10, 3),
                                  {.max_seq_len = 8, .global_batch_size = 4, .packing = false});
  EXPECT_EQ(plan.steps_per_epoch(0), 3);
  EXPECT_EQ(plan.global_batch(0, 2).size(), 2U);
  EXPECT_EQ(plan.label_tokens(plan.global_batch(0, 2)), 6);
}

TEST(BatchPlan, ShuffleMovesExamplesOverTheWholeEpoch) {
  const BatchPlan plan =
      plan_for(std::vector<int64_t>(1000, 10), {.max_seq_len = 10, .global_batch_size = 1000});
  const auto bins = all_bins(plan, 0);
  double distance = 0;
  for (size_t place = 0; place < bins.size(); ++place) {
    distance += std::abs(static_cast<double>(bins[place][0]) - static_cast<double>(place));
  }
  EXPECT_NEAR(distance / 1000, 1000.0 / 3, 40);  // the mean for a uniform permutation is n / 3
}

TEST(BatchPlan, WeightsSetHowOftenAnExampleIsUsed) {
  const std::vector<int64_t> lengths(400, 7);
  BatchPlanOptions options{.max_seq_len = 64, .global_batch_size = 8, .seed = 3};
  options.groups = {{0, 100, 2}, {100, 300, 0.25}, {300, 400, 1.5}};
  const BatchPlan plan = plan_for(lengths, options);
  const auto times = [&](int64_t epoch) {
    std::vector<int> seen(400);
    for (const Bin& bin : all_bins(plan, epoch))
      for (const int64_t example : bin) ++seen[static_cast<size_t>(example)];
    return seen;
  };
  const std::vector<int> first = times(0), second = times(1);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(first[i], 2);
  const auto sum = [&](const std::vector<int>& seen, int begin, int end) {
    return std::accumulate(seen.begin() + begin, seen.begin() + end, 0);
  };
  EXPECT_EQ(sum(first, 100, 300), 50);
  EXPECT_EQ(*std::max_element(first.begin() + 100, first.begin() + 300), 1);
  EXPECT_EQ(sum(first, 300, 400), 150);
  EXPECT_EQ(*std::min_element(first.begin() + 300, first.end()), 1);
  EXPECT_NE(first, second) << "another part each epoch";
  EXPECT_EQ(sum(second, 100, 300), 50);
  EXPECT_GT(fill(plan, lengths, 64), 0.9);
}

TEST(BatchPlan, GroupsByLength) {
  const auto lengths = chat_lengths(1003, 1024, 5);
  const BatchPlan plan = plan_for(
      lengths,
      {.max_seq_len = 1024, .global_batch_size = 16, .packing = false, .group_by_length = true});
  std::vector<int> seen(lengths.size());
  double spread = 0;
  int64_t longest_batch = -1, longest = 0;
  for (int64_t step = 0; step < plan.steps_per_epoch(0); ++step) {
    int64_t low = INT64_MAX, high = 0;
    for (const Bin& bin : plan.global_batch(0, step)) {
      ++seen[static_cast<size_t>(bin[0])];
      low = std::min(low, lengths[static_cast<size_t>(bin[0])]);
      high = std::max(high, lengths[static_cast<size_t>(bin[0])]);
    }
    spread += static_cast<double>(high - low);
    if (high > longest) longest = high, longest_batch = step;
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  EXPECT_LT(spread / static_cast<double>(plan.steps_per_epoch(0)), 60) << "of 1024";
  EXPECT_NE(longest_batch, 0) << "batches come in random order";
  EXPECT_EQ(plan.global_batch(0, plan.steps_per_epoch(0) - 1).size(), 1003U % 16);
}

/// Bins are shorter than the longest example where a data set is small.
TEST(Packing, ALongerExampleHasABinToItself) {
  const std::vector<int64_t> lengths = {300, 100, 900, 120, 256, 30};
  const std::vector<int64_t> order = {0, 1, 2, 3, 4, 5};
  const std::vector<Bin> bins =
      pack_first_fit_decreasing(order, lengths, 256, kPackingWindow, nullptr);
  EXPECT_EQ(bins, (std::vector<Bin>{{0}, {1, 3, 5}, {2}, {4}}));
  BatchPlanOptions options;
  options.bin_tokens = 256;
  options.global_batch_size = 2;
  EXPECT_EQ(plan_for(lengths, options).steps_per_epoch(0), 2);
}

TEST(Packing, PutsTheLongestFirstAndFillsTheFirstBinWithRoom) {
  const std::vector<int64_t> order{0, 1, 2, 3, 4, 5}, lengths{4, 8, 1, 4, 2, 1};
  EXPECT_EQ(pack_first_fit_decreasing(order, lengths, 10, 100, nullptr),
            (std::vector<Bin>{{0, 2, 3, 5}, {1, 4}}));
}

TEST(Packing, CarriesTheEmptiestBinIntoTheNextWindow) {
  const std::vector<int64_t> order{0, 1, 2, 3}, lengths{9, 3, 7, 9};
  std::vector<int64_t> ends;
  EXPECT_EQ(pack_first_fit_decreasing(order, lengths, 10, 2, &ends),
            (std::vector<Bin>{{0}, {1, 2}, {3}}));
  EXPECT_EQ(ends, (std::vector<int64_t>{1, 3}));
}

TEST(MakeBatch, ConcatenatesDocumentsWithoutPadding) {
  const auto examples = examples_of({2, 3, 1});
  const Batch batch = make_batch(examples, {{2}, {0, 1}}, 1, 1);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 1, 1000, 1001, 1002}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, kIgnoreIndex, 1001, 1002, kIgnoreIndex}));
  EXPECT_EQ(batch.position_ids, (std::vector<int32_t>{0, 1, 0, 1, 2}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 2, 5}));
  EXPECT_EQ(batch.document_keys, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(batch.max_seqlen, 3);
  EXPECT_EQ(batch.label_tokens, 3);
}

TEST(MakeBatch, DocumentKeysDoNotDependOnTheDealing) {
  const auto lengths = uniform_lengths(60, 40, 2);
  const auto examples = examples_of(lengths);
  const BatchPlan plan = plan_for(lengths, {.max_seq_len = 64, .global_batch_size = 12});
  const auto global = plan.global_batch(0, 0);
  const Batch whole = make_batch(examples, global, 0, 12);
  for (const int64_t micro : {1, 2, 3, 6, 100}) {
    Batch joined;
    for (int64_t first = 0; first < 12; first += micro) {
      const Batch part = make_batch(examples, global, first, micro);
      joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
      joined.document_keys.insert(joined.document_keys.end(), part.document_keys.begin(),
                                  part.document_keys.end());
      joined.label_tokens += part.label_tokens;
    }
    EXPECT_EQ(joined.tokens, whole.tokens);
    EXPECT_EQ(joined.document_keys, whole.document_keys);
    EXPECT_EQ(joined.label_tokens, whole.label_tokens);
  }
}

TEST(MakeBatch, IsEmptyPastTheEnd) {
  const Batch batch = make_batch(examples_of({2}), {{0}}, 1, 4);
  EXPECT_EQ(batch.num_tokens(), 0);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0}));
  EXPECT_EQ(batch.max_seqlen, 0);
}

/// Example i has the prompt 1000 i, 1000 i + 1, … and the answer 1000 i + 500, ….
Example judged_example(int64_t number, int64_t prompt, int64_t answer, bool is_desirable) {
  Example example{.record = number,
                  .judgement = is_desirable ? Judgement::kDesirable : Judgement::kUndesirable,
                  .answer_begin = prompt};
  const auto first = static_cast<int32_t>(1000 * number);
  for (int64_t i = 0; i < prompt; ++i) example.tokens.push_back(first + static_cast<int32_t>(i));
  for (int64_t i = 0; i < answer; ++i)
    example.tokens.push_back(first + 500 + static_cast<int32_t>(i));
  example.labels.assign(example.tokens.size(), kIgnoreIndex);
  for (size_t i = static_cast<size_t>(std::max<int64_t>(prompt, 1)); i < example.tokens.size(); ++i)
    example.labels[i - 1] = example.tokens[i];
  example.label_tokens = prompt == 0 ? answer - 1 : answer;
  return example;
}

/// Tokens and labels of document i.
using Document = std::pair<std::vector<int32_t>, std::vector<int32_t>>;
Document document_of(const Batch& batch, size_t i) {
  const auto slice = [&](const std::vector<int32_t>& rows) {
    return std::vector<int32_t>(rows.begin() + batch.cu_seqlens[i],
                                rows.begin() + batch.cu_seqlens[i + 1]);
  };
  return {slice(batch.tokens), slice(batch.labels)};
}

TEST(MakeBatch, HasTheJudgementOfEachDocument) {
  const ExampleStore judged =
      ExampleStore::in_memory({judged_example(0, 2, 1, true), judged_example(1, 1, 2, false),
                               judged_example(2, 1, 1, true)});
  EXPECT_EQ(make_batch(judged, {{2}, {1, 0}}, 0, 2).is_desirable, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(make_batch(judged, {{2}, {1, 0}}, 0, 2, {1}).is_desirable,
            (std::vector<uint8_t>{1, 0, 1}))
      << "lost documents stay";
  EXPECT_TRUE(make_batch(examples_of({2, 3}), {{0}, {1}}, 0, 2).is_desirable.empty());
}

TEST(MakeMismatchedBatch, JoinsAPromptWithTheNextAnswer) {
  const ExampleStore examples =
      ExampleStore::in_memory({judged_example(0, 2, 2, true), judged_example(1, 1, 3, false),
                               judged_example(2, 3, 1, true)});
  const std::vector<Bin> global = {{2, 0}, {1}};
  const std::vector<int64_t> all = {0, 1}, second = {1};
  const Batch batch = make_mismatched_batch(examples, global, all, 16);
  constexpr int32_t kNone = kIgnoreIndex;
  ASSERT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 5, 10, 12}));
  EXPECT_EQ(document_of(batch, 0),
            (Document{{2000, 2001, 2002, 500, 501}, {kNone, kNone, 500, 501, kNone}}));
  EXPECT_EQ(document_of(batch, 1),
            (Document{{0, 1, 1500, 1501, 1502}, {kNone, 1500, 1501, 1502, kNone}}));
  EXPECT_EQ(document_of(batch, 2), (Document{{1000, 2500}, {2500, kNone}}));
  EXPECT_EQ(batch.position_ids, (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(batch.document_keys, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(batch.label_tokens, 6);
  EXPECT_EQ(batch.max_seqlen, 5);
  EXPECT_TRUE(batch.is_desirable.empty());
  const Batch part = make_mismatched_batch(examples, global, second, 16);
  EXPECT_EQ(document_of(part, 0), document_of(batch, 2));
  EXPECT_EQ(part.document_keys, std::vector<int64_t>{2});
  const Batch cut = make_mismatched_batch(examples, global, all, 4);
  EXPECT_EQ(document_of(cut, 0), (Document{{2000, 2001, 2002, 500}, {kNone, kNone, 500, kNone}}));
  EXPECT_EQ(cut.label_tokens, 1 + 2 + 1);
}

/// Of two records with two answers each: the chosen ones change places, and the rejected ones.
TEST(MakeMismatchedBatch, TakesNoAnswerToTheSamePrompt) {
  std::vector<Example> made;
  for (int64_t i = 0; i < 4; ++i) {
    made.push_back(judged_example(i, 1, 1, i % 2 == 0));
    made.back().record = i / 2;
  }
  const ExampleStore examples = ExampleStore::in_memory(made);
  const std::vector<int64_t> all = {0, 1};
  const Batch batch = make_mismatched_batch(examples, {{3, 0}, {1, 2}}, all, 8);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{3000, 1500, 0, 2500, 1000, 3500, 2000, 500}));
  const Batch three = make_mismatched_batch(examples, {{0, 1}, {2}}, all, 8);
  EXPECT_EQ(three.document_keys.size(), 2U);  // 1 has no answer of another record left
  const Batch of_one_record = make_mismatched_batch(examples, {{0, 1}}, std::vector<int64_t>{0}, 8);
  EXPECT_EQ(of_one_record.num_tokens(), 0);
}

TEST(MakeMismatchedBatch, LeavesOutLostExamplesAndNeedsTwo) {
  const ExampleStore examples =
      ExampleStore::in_memory({judged_example(0, 1, 1, true), judged_example(1, 1, 1, false),
                               judged_example(2, 1, 1, true)});
  const std::vector<int64_t> all = {0, 1};
  const Batch batch = make_mismatched_batch(examples, {{0, 1}, {2}}, all, 8, {1});
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 2500, 2000, 500}));
  EXPECT_EQ(batch.document_keys, (std::vector<int64_t>{0, 2}));
  for (const std::set<int64_t>& lost : {std::set<int64_t>{0, 1}, std::set<int64_t>{0, 1, 2}}) {
    const Batch none = make_mismatched_batch(examples, {{0, 1}, {2}}, all, 8, lost);
    EXPECT_EQ(none.num_tokens(), 0);
    EXPECT_EQ(none.cu_seqlens, std::vector<int32_t>{0});
  }
  EXPECT_EQ(make_mismatched_batch(examples, {{0}}, std::vector<int64_t>{0}, 8).num_tokens(), 0);
}

/// A text without a prompt: its first token has no label, and behind another's prompt it has one.
TEST(MakeMismatchedBatch, TakesWholeAnswersWithoutAPrompt) {
  const ExampleStore examples =
      ExampleStore::in_memory({judged_example(0, 0, 2, true), judged_example(1, 1, 2, false)});
  const Batch batch = make_mismatched_batch(examples, {{0, 1}}, std::vector<int64_t>{0}, 8);
  EXPECT_EQ(document_of(batch, 0), (Document{{1500, 1501}, {1501, kIgnoreIndex}}));
  EXPECT_EQ(document_of(batch, 1), (Document{{1000, 500, 501}, {500, 501, kIgnoreIndex}}));
}

/// The documents of a global batch do not depend on how it is divided, and each answer is used once.
TEST(MakeMismatchedBatch, DoesNotDependOnTheDealing) {
  RandomStream random(5, 0);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random.next_below(limit)); };
  for (int round = 0; round < 30; ++round) {
    std::vector<Example> made;
    std::vector<Bin> global;
    for (int64_t i = 0, count = 2 + below(20); i < count; ++i) {
      made.push_back(judged_example(i, below(6), 2 + below(6), below(2) == 0));
      if (global.empty() || below(2) == 0) global.emplace_back();
      global.back().push_back(i);
    }
    const ExampleStore examples = ExampleStore::in_memory(made);
    std::vector<int64_t> all(global.size());
    std::iota(all.begin(), all.end(), 0);
    const Batch whole = make_mismatched_batch(examples, global, all, 9);
    ASSERT_EQ(whole.document_keys.size(), made.size());
    for (size_t i = 0; i < made.size(); ++i) {
      const Example& prompt = made[i];
      const Example& answer = made[(i + 1) % made.size()];
      std::vector<int32_t> expected(prompt.tokens.begin(),
                                    prompt.tokens.begin() + prompt.answer_begin);
      expected.insert(expected.end(), answer.tokens.begin() + answer.answer_begin,
                      answer.tokens.end());
      expected.resize(std::min<size_t>(expected.size(), 9));
      EXPECT_EQ(document_of(whole, i).first, expected);
    }
    size_t seen = 0;
    std::vector<std::vector<int64_t>> parts(3);
    for (const int64_t place : all) parts[static_cast<size_t>(below(3))].push_back(place);
    for (const std::vector<int64_t>& places : parts) {
      const Batch part = make_mismatched_batch(examples, global, places, 9);
      for (size_t i = 0; i < part.document_keys.size(); ++i, ++seen)
        EXPECT_EQ(document_of(part, i),
                  document_of(whole, static_cast<size_t>(part.document_keys[i])));
    }
    EXPECT_EQ(seen, made.size());
  }
}

/// @param begin of an image of two tokens
SequenceMedia two_token_image(int64_t begin, int32_t feature) {
  SequenceMedia image{.rows = 2, .num_tokens = 2, .begin = begin, .end = begin + 2};
  image.media.path = "a.png";
  image.feature = feature;
  return image;
}

TEST(MakeMismatchedBatch, KeepsImagesOfPromptsAndLeavesOutThoseOfAnswers) {
  std::vector<Example> made = {judged_example(0, 4, 2, true), judged_example(1, 3, 2, false),
                               judged_example(2, 2, 4, true)};
  constexpr int32_t kFeature = 7;
  made[0].tokens[1] = made[0].tokens[2] = kFeature;
  made[0].media = {two_token_image(1, kFeature)};
  made[2].tokens[3] = made[2].tokens[4] = kFeature;  // within the answer
  made[2].labels[2] = made[2].labels[3] = kIgnoreIndex;
  made[2].media = {two_token_image(3, kFeature)};
  const ExampleStore examples = ExampleStore::in_memory(made);
  const Batch batch = make_mismatched_batch(examples, {{2, 0, 1}}, std::vector<int64_t>{0}, 16);
  // Not the second prompt with the answer of the last one, which has an image.
  EXPECT_EQ(batch.document_keys, (std::vector<int64_t>{0, 1}));
  ASSERT_EQ(batch.images.size(), 1U);
  EXPECT_EQ(batch.images[0].begin, batch.cu_seqlens[1] + 1);
  EXPECT_EQ(batch.image_rows,
            (std::vector<RowSpan>{{batch.cu_seqlens[1] + 1, batch.cu_seqlens[1] + 3}}));
  EXPECT_EQ(document_of(batch, 1).first, (std::vector<int32_t>{0, 7, 7, 3, 1500, 1501}));
}

/// Against every micro-batch of an epoch.
TEST(BatchPlan, KnowsItsLargestMicroBatch) {
  const std::vector<int64_t> lengths = chat_lengths(300, 900, 5);
  for (const bool packing : {true, false}) {
    const BatchPlan plan = plan_for(
        lengths,
        {.max_seq_len = 1000, .bin_tokens = 1000, .global_batch_size = 7, .packing = packing});
    const auto tokens_of = [&](const Bin& bin) {
      int64_t tokens = 0;
      for (const int64_t example : bin) tokens += lengths[static_cast<size_t>(example)];
      return tokens;
    };
    int64_t of_first_step = 0, of_epoch = 0;
    std::vector<int64_t> all;
    for (int64_t step = 0; step < plan.steps_per_epoch(0); ++step) {
      const std::vector<Bin> bins = plan.global_batch(0, step);
      for (size_t first = 0; first < bins.size(); first += 2) {
        int64_t tokens = tokens_of(bins[first]);
        if (first + 1 < bins.size()) tokens += tokens_of(bins[first + 1]);
        of_epoch = std::max(of_epoch, tokens);
        if (step == 0) of_first_step = std::max(of_first_step, tokens);
      }
      for (const Bin& bin : bins) all.push_back(tokens_of(bin));
    }
    EXPECT_EQ(plan.max_tokens(2, 1), of_first_step);
    EXPECT_EQ(plan.max_tokens(2, 1'000'000), of_epoch);
    std::sort(all.rbegin(), all.rend());
    EXPECT_EQ(plan.longest_tokens(2), all[0] + all[1]);
    EXPECT_EQ(plan.longest_tokens(1'000'000), std::accumulate(lengths.begin(), lengths.end(), 0));
  }
}

}  // namespace
}  // namespace sftrun::data
