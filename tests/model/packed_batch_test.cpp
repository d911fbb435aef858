#include "sftrun/model/packed_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sftrun/kernels/delta_chunks.h"

namespace sftrun::model {
namespace {

using spec::RopeSpec;
using spec::RopeType;

/// Documents of these lengths; every third token carries a label.
data::Batch documents_of(const std::vector<int32_t>& lengths) {
  data::Batch batch;
  batch.cu_seqlens = {0};
  for (const int32_t length : lengths) {
    batch.document_keys.push_back(static_cast<int64_t>(100 + batch.cu_seqlens.size()));
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    for (int32_t i = 0; i < length; ++i) {
      batch.tokens.push_back(7 * i + length);
      batch.labels.push_back(i % 3 == 1 ? 10 + i : data::kIgnoreIndex);
      batch.position_ids.push_back(i);
    }
  }
  return batch;
}

RopeSpec rope_of(RopeType type) {
  RopeSpec rope{.type = type, .theta = 1e4, .rotary_dim = 8, .max_position_embeddings = 24};
  rope.factor = 4;
  if (type != RopeType::kLongRope) return rope;
  rope.original_max_position_embeddings = 16;
  rope.short_factor = {1, 1.25F, 1.5F, 2};
  rope.long_factor = {1, 2, 5, 9};
  return rope;
}

/// Row by row, of the frequencies that each document has by its length.
kernels::RopeAngles angles_of(const RopeSpec& rope, const data::Batch& batch) {
  const int64_t half = rope.rotary_dim / 2;
  kernels::RopeAngles angles{at::empty({batch.num_tokens(), half}),
                             at::empty({batch.num_tokens(), half})};
  int64_t i = 0;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t begin = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    const spec::RopeTable table = spec::rope_table(rope, end - begin);
    for (int64_t p = 0; p < end - begin; ++p) {
      for (int64_t channel = 0; channel < half; ++channel, ++i) {
        const float angle = static_cast<float>(p) * table.inv_freq[static_cast<size_t>(channel)];
        const double wide = angle;
        angles.cos.data_ptr<float>()[i] =
            static_cast<float>(std::cos(wide)) * table.attention_scaling;
        angles.sin.data_ptr<float>()[i] =
            static_cast<float>(std::sin(wide)) * table.attention_scaling;
      }
    }
  }
  return angles;
}

TEST(PackedBatches, NameTheDocumentsOfLabelledRows) {
  RopeCache cache({rope_of(RopeType::kDefault)});
  const data::Batch batch = documents_of({5, 1, 2, 8});  // labels at positions 1, 4 and 7
  const auto documents = [&](const BatchOptions& options) {
    return prepare_batch(batch, cache, BatchTarget(at::kCPU), {}, options).label_documents;
  };
  EXPECT_FALSE(documents({}).defined());
  EXPECT_TRUE(
      at::equal(documents({.with_documents = true}), at::tensor({0, 0, 2, 3, 3, 3}, at::kLong)));
  BatchOptions padded{.with_documents = true};
  padded.sizes = BatchSizes{20, 8, 6, 8};
  EXPECT_TRUE(at::equal(documents(padded), at::tensor({0, 0, 2, 3, 3, 3, 0, 0}, at::kLong)));
}

/// Documents 0 and 2 are chosen sequences; they have 2, 3, 1 and 2 labels.
TEST(PackedBatches, NameTheLabelsBeyondTheShorterAnswer) {
  RopeCache cache({rope_of(RopeType::kDefault)});
  const data::Batch batch = documents_of({5, 8, 2, 6});
  const auto kinds = [&](const LabelKinds& asked) {
    return prepare_batch(batch, cache, BatchTarget(at::kCPU), {},
                         {.with_documents = true, .kinds = asked})
        .label_kinds;
  };
  EXPECT_FALSE(kinds({}).defined());
  const auto tail = static_cast<int64_t>(data::LabelKind::kTail);
  EXPECT_TRUE(
      at::equal(kinds({.tails = true}), at::tensor({int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0},
                                                    tail, int64_t{0}, int64_t{0}, tail},
                                                   at::kLong)));
}

/// The second token of the first prompt stands for features.
TEST(PackedBatches, LabelThePromptsOfChosenSequences) {
  RopeCache cache({rope_of(RopeType::kDefault)});
  data::Batch batch = documents_of({6, 4, 3, 2});
  batch.labels.assign(batch.tokens.size(), data::kIgnoreIndex);
  batch.labels[3] = 100, batch.labels[4] = 101;  // chosen
  batch.labels[8] = 102;                         // rejected
  batch.labels[13] = 103;                        // rejected; its chosen sequence lost its labels
  data::SequenceMedia features;
  features.begin = 1, features.end = 2;
  batch.features = {features};
  BatchTarget target(at::kCPU);
  target.is_before_embedding = false;  // features are not read
  const PackedBatch packed = prepare_batch(
      batch, cache, target, {}, {.with_documents = true, .kinds = {.prompts_of_chosen = true}});
  const auto prompt = static_cast<int64_t>(data::LabelKind::kPrompt);
  EXPECT_TRUE(at::equal(packed.label_rows, at::tensor({1, 2, 3, 4, 8, 13}, at::kLong)));
  EXPECT_TRUE(at::equal(
      packed.labels, at::tensor({batch.tokens[2], batch.tokens[3], 100, 101, 102, 103}, at::kInt)));
  EXPECT_TRUE(at::equal(
      packed.label_kinds,
      at::tensor({prompt, prompt, int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0}}, at::kLong)));
  EXPECT_TRUE(at::equal(packed.label_documents, at::tensor({0, 0, 0, 0, 1, 3}, at::kLong)));
}

// Batches of one cache, whose tables grow: short documents, long ones, both, and short ones again.
const std::vector<std::vector<int32_t>> kBatches = {
    {3, 0, 5}, {16, 1}, {2, 17, 16}, {40, 3, 25, 24}, {100}, {4, 90}, {6, 6}};

class RopeOfEachLength : public testing::TestWithParam<RopeType> {};
TEST_P(RopeOfEachLength, AnglesAreTheDocuments) {
  const std::vector<RopeSpec> ropes = {rope_of(GetParam()), rope_of(RopeType::kDefault)};
  RopeCache cache(ropes);
  for (const std::vector<int32_t>& lengths : kBatches) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    const data::Batch batch = documents_of(lengths);
    const PackedBatch packed = prepare_batch(batch, cache, BatchTarget(at::kCPU), {});
    ASSERT_EQ(packed.context.ropes.size(), ropes.size());
    for (size_t i = 0; i < ropes.size(); ++i) {
      const kernels::RopeAngles expected = angles_of(ropes[i], batch);
      EXPECT_TRUE(at::equal(packed.context.ropes[i].cos, expected.cos)) << "rope " << i;
      EXPECT_TRUE(at::equal(packed.context.ropes[i].sin, expected.sin)) << "rope " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Types, RopeOfEachLength,
                         testing::Values(RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic,
                                         RopeType::kLongRope),
                         [](const auto& of_type) {
                           return std::to_string(static_cast<int>(of_type.param));
                         });

TEST(RopeRows, OfDocumentsThatTheTableServesAreTheirPositions) {
  RopeCache cache({rope_of(RopeType::kLongRope), rope_of(RopeType::kDynamic)});
  for (const RopeRows& rows : cache.rows_of({0, 16, 20})) {
    EXPECT_TRUE(rows.rows.empty());
    EXPECT_TRUE(rows.cos.empty());
  }
  const std::vector<RopeRows> rows = cache.rows_of({0, 30, 32});
  EXPECT_EQ(rows[0].rows.size(), 32U);
  EXPECT_TRUE(rows[0].cos.empty());
  EXPECT_TRUE(rows[1].rows.empty());
  EXPECT_EQ(rows[1].cos.size(), 32U * 4);
}

TEST(PackedBatchArrays, AreTheBatchs) {
  const data::Batch batch = documents_of({4, 0, 7});
  RopeCache cache({});
  const PackedBatch packed = prepare_batch(batch, cache, BatchTarget(at::kCPU), {3, 5, true});
  EXPECT_TRUE(at::equal(packed.tokens, at::tensor(batch.tokens, at::kLong)));
  EXPECT_TRUE(at::equal(packed.label_rows, at::tensor({1, 5, 8}, at::kLong)));
  EXPECT_TRUE(at::equal(packed.labels, at::tensor({11, 11, 14}, at::kInt)));
  EXPECT_EQ(packed.context.cu_seqlens, batch.cu_seqlens);
  ASSERT_EQ(packed.context.token_keys.size(), 11U);
  EXPECT_EQ(packed.context.token_keys[3].document, 101U);
  EXPECT_EQ(packed.context.token_keys[3].position, 3U);
  EXPECT_EQ(packed.context.token_keys[4].document, 103U);
  EXPECT_EQ(packed.context.token_keys[4].position, 0U);
  EXPECT_EQ(packed.context.chunks, nullptr);
}

TEST(PackedBatchArrays, HaveChunksWhereTheModelHasDeltaNets) {
  BatchTarget target(at::kCPU);
  target.cuts_chunks = true;
  RopeCache cache({});
  const data::Batch batch = documents_of({3, 130, 0, 64, 65});
  const PackedBatch packed = prepare_batch(batch, cache, target, {});
  ASSERT_NE(packed.context.chunks, nullptr);
  const kernels::Chunks& chunks = *packed.context.chunks;
  EXPECT_EQ(chunks.steps, (std::vector<int64_t>{4, 2, 1}));
  ASSERT_EQ(chunks.tokens.sizes(), at::IntArrayRef({7, kernels::kChunk}));
  EXPECT_EQ(chunks.real.sizes(), chunks.tokens.sizes());
  EXPECT_EQ(chunks.real.sum().item<float>(), static_cast<float>(batch.num_tokens()));
  const at::Tensor x = at::arange(batch.num_tokens());
  EXPECT_TRUE(at::equal(chunks.cut(x), chunks.tokens));
  EXPECT_TRUE(at::equal(chunks.join(chunks.cut(x).unsqueeze(-1)).squeeze(-1), x));
  EXPECT_TRUE(at::equal(chunks.previous, at::tensor({0, 0, 0, 0, 0, 1, 4}, at::kLong)));
  EXPECT_TRUE(at::equal(chunks.following, at::tensor({4, 5, 0, 0, 6, 0, 0}, at::kLong)));
  EXPECT_TRUE(
      at::equal(chunks.has_following, at::tensor({1., 1., 0., 0., 1., 0., 0.}, at::kFloat)));
}

TEST(PackedBatchArrays, OfNoTokensAreNone) {
  RopeCache cache({rope_of(RopeType::kDynamic)});
  EXPECT_EQ(prepare_batch(documents_of({}), cache, BatchTarget(at::kCPU), {}).num_tokens(), 0);
}

/// Of ranks that do not communicate.
class Ranks final : public layers::SequenceRanks {
 public:
  Ranks(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  void sum(const at::Tensor& /*values*/) const override {}
  void exchange(const at::Tensor& /*out*/, const at::Tensor& /*in*/,
                const std::vector<int64_t>& /*out_rows*/,
                const std::vector<int64_t>& /*in_rows*/) const override {}

 private:
  int64_t rank_, size_;
};

/// The parts of `ranks` ranks, one after the other, are the whole; labels are whole everywhere.
TEST(PackedBatchArrays, AreDividedOverRanksThatShareSequences) {
  const data::Batch batch = documents_of({5, 30, 6});
  RopeCache cache({rope_of(RopeType::kLongRope), rope_of(RopeType::kDynamic)});
  const Randomness randomness{3, 5, true};
  const PackedBatch whole = prepare_batch(batch, cache, BatchTarget(at::kCPU), randomness);
  constexpr int64_t kRanks = 4;
  std::vector<at::Tensor> tokens, label_rows, labels, cos;
  std::vector<uint32_t> positions;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const Ranks ranks(rank, kRanks);
    BatchTarget target(at::kCPU);
    target.sequence_ranks = &ranks;
    const PackedBatch part = prepare_batch(batch, cache, target, randomness);
    ASSERT_NE(part.context.share, nullptr);
    EXPECT_EQ(part.context.cu_seqlens, batch.cu_seqlens);
    EXPECT_TRUE(at::equal(part.labels, whole.labels));
    tokens.push_back(part.tokens);
    label_rows.push_back(part.label_rows + part.context.share->begin());
    labels.push_back(part.own_of(part.labels));
    cos.push_back(at::stack({part.context.ropes[0].cos, part.context.ropes[1].cos}));
    for (const kernels::TokenKey& key : part.context.token_keys) positions.push_back(key.position);
  }
  EXPECT_TRUE(at::equal(at::cat(tokens), whole.tokens));
  EXPECT_TRUE(at::equal(at::cat(label_rows), whole.label_rows));
  EXPECT_TRUE(at::equal(at::cat(labels), whole.labels));
  EXPECT_TRUE(at::equal(at::cat(cos, 1),
                        at::stack({whole.context.ropes[0].cos, whole.context.ropes[1].cos})));
  EXPECT_EQ(positions, std::vector<uint32_t>(batch.position_ids.begin(), batch.position_ids.end()));
}

/// Each rank has a token; those that are added have no label.
TEST(PackedBatchArrays, OfFewerTokensThanRanksGoOn) {
  const data::Batch batch = documents_of({2});
  RopeCache cache({});
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Ranks ranks(rank, 3);
    BatchTarget target(at::kCPU);
    target.sequence_ranks = &ranks;
    const PackedBatch part = prepare_batch(batch, cache, target, {});
    EXPECT_EQ(part.num_tokens(), 1);
    EXPECT_EQ(part.labels.numel(), 1);
    EXPECT_EQ(part.label_rows.numel(), rank == 1 ? 1 : 0);
  }
}

}  // namespace
}  // namespace sftrun::model
