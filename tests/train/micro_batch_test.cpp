#include "sftrun/train/micro_batch.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sftrun::train {
namespace {

constexpr parallel::MeshSizes kSizes{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 2};
constexpr int kRanks = 16, kParts = 4;

/// One-token documents: the token is the number of the document.
data::ExampleStore numbered_examples(int count) {
  std::vector<data::Example> examples;
  for (int32_t i = 0; i < count; ++i)
    examples.push_back({.tokens = {i}, .labels = {i}, .label_tokens = 1});
  return data::ExampleStore::in_memory(examples);
}

std::vector<data::Bin> one_document_each(int count) {
  std::vector<data::Bin> bins;
  for (int64_t i = 0; i < count; ++i) bins.push_back({i});
  return bins;
}

/// The ranks with the same part of the batch have the same tokens, and all parts together have each
/// packed sequence once.
TEST(MicroBatch, DealsEachSequenceToOnePart) {
  constexpr int kCount = 24, kSize = 2;
  const data::ExampleStore examples = numbered_examples(kCount);
  const std::vector<data::Bin> bins = one_document_each(kCount);
  std::vector<int32_t> dealt;
  for (int64_t step = 0; step < kCount / (kParts * kSize); ++step) {
    std::vector<std::vector<int32_t>> parts(kParts);
    for (int rank = 0; rank < kRanks; ++rank) {
      const parallel::Mesh mesh(kSizes, rank);
      const data::Batch batch =
          micro_batch_of(mesh, examples, bins, {.micro_step = step, .size = kSize});
      std::vector<int32_t>& part = parts[static_cast<size_t>(mesh.dp_rank())];
      if (part.empty()) part = batch.tokens;
      EXPECT_EQ(batch.tokens, part) << "rank " << rank;
    }
    for (const std::vector<int32_t>& part : parts)
      dealt.insert(dealt.end(), part.begin(), part.end());
  }
  std::vector<int32_t> all(kCount);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(dealt, all);
}

/// Documents keep the numbers that they have in the list.
TEST(MicroBatch, HasWhatIsDealtToIt) {
  const data::ExampleStore examples = numbered_examples(5);
  const std::vector<data::Bin> bins = {{0, 1}, {2}, {3}, {4}};
  const data::Deal dealt = {{0, 3}, {2}, {}, {1}};
  const auto batch = [&](int rank, int64_t step) {
    return micro_batch_of(parallel::Mesh::replicated(2, rank), examples, bins,
                          {.micro_step = step, .size = 2, .dealt = &dealt});
  };
  EXPECT_EQ(batch(0, 0).tokens, (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(batch(0, 0).document_keys, (std::vector<int64_t>{0, 1, 4}));
  EXPECT_EQ(batch(1, 0).tokens, (std::vector<int32_t>{3}));
  EXPECT_EQ(batch(1, 0).document_keys, (std::vector<int64_t>{3}));
  EXPECT_EQ(batch(0, 1).num_tokens(), 0);
  EXPECT_EQ(batch(1, 1).document_keys, (std::vector<int64_t>{2}));
  EXPECT_EQ(batch(1, 2).num_tokens(), 0) << "beyond the deal";
}

TEST(MicroBatch, IsEmptyBeyondTheList) {
  const parallel::Mesh last = parallel::Mesh::replicated(kParts, kParts - 1);
  EXPECT_EQ(micro_batch_of(last, numbered_examples(3), one_document_each(3), {}).num_tokens(), 0);
}

TEST(MicroBatch, MayBeTheSameOnAllRanks) {
  const std::vector<int32_t> first{0, 1};
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(micro_batch_of(parallel::Mesh(kSizes, rank), numbered_examples(4),
                             one_document_each(4), {.size = 2, .is_same_on_all = true})
                  .tokens,
              first);
}

}  // namespace
}  // namespace sftrun::train
