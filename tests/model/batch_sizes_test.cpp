#include "sftrun/model/batch_sizes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "sftrun/core/rng.h"
#include "sftrun/model/stage.h"
#include "support/reference.h"
#include "support/tensors.h"

namespace sftrun::model {
namespace {

data::Batch batch_of(const std::vector<int64_t>& lengths) {
  std::vector<data::Example> examples;
  std::vector<data::Bin> bins;
  for (const int64_t length : lengths) {
    data::Example example;
    for (int64_t i = 0; i < length; ++i)
      example.tokens.push_back(static_cast<int32_t>(3 + examples.size() + 7 * i % 90));
    for (int64_t i = 0; i < length; ++i) {
      const bool has_label = i % 3 == 0 && i + 1 < length;
      example.labels.push_back(has_label ? example.tokens[static_cast<size_t>(i) + 1]
                                         : data::kIgnoreIndex);
      example.label_tokens += has_label ? 1 : 0;
    }
    bins.push_back({static_cast<int64_t>(examples.size())});
    examples.push_back(std::move(example));
  }
  return data::make_batch(data::ExampleStore::in_memory(examples), bins, 0,
                          static_cast<int64_t>(bins.size()));
}

std::vector<int64_t> random_lengths(RandomStream& random) {
  std::vector<int64_t> lengths(1 + random.next_below(12));
  const uint64_t longest = 1 + random.next_below(900);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random.next_below(longest));
  return lengths;
}

TEST(BatchSizes, AreEnoughAndNotMuchMore) {
  RandomStream random(7, 0);
  for (int i = 0; i < 300; ++i) {
    const data::Batch batch = batch_of(random_lengths(random));
    const BatchSizes sizes = rounded_sizes(batch);
    const int64_t tokens = batch.num_tokens();
    EXPECT_GE(sizes.tokens, tokens);
    EXPECT_LE(sizes.tokens - tokens, std::max<int64_t>(63, tokens / 8)) << tokens;
    EXPECT_GE(sizes.labels, batch.label_tokens);
    EXPECT_LE(sizes.labels, sizes.tokens);
    EXPECT_GE(sizes.longest, batch.max_seqlen);
    EXPECT_LE(sizes.longest, sizes.tokens);
    const data::Batch full = filled_up(batch, sizes);
    EXPECT_GE(sizes.documents + 1, static_cast<int64_t>(full.cu_seqlens.size()));
  }
}

TEST(BatchSizes, AreFew) {
  std::set<int64_t> tokens;
  for (int64_t length = 1; length <= 8192; ++length)
    tokens.insert(rounded_sizes(batch_of({length})).tokens);
  EXPECT_LE(tokens.size(), 40U);
}

TEST(FilledUp, RepeatsTheLongestDocumentWithoutLabels) {
  RandomStream random(8, 0);
  for (int i = 0; i < 100; ++i) {
    const data::Batch batch = batch_of(random_lengths(random));
    const BatchSizes sizes = rounded_sizes(batch);
    const data::Batch full = filled_up(batch, sizes);
    const auto own = static_cast<size_t>(batch.num_tokens());
    ASSERT_EQ(full.num_tokens(), sizes.tokens);
    ASSERT_EQ(full.labels.size(), full.tokens.size());
    ASSERT_EQ(full.position_ids.size(), full.tokens.size());
    ASSERT_EQ(full.document_keys.size() + 1, full.cu_seqlens.size());
    EXPECT_EQ(full.cu_seqlens.back(), sizes.tokens);
    EXPECT_EQ(full.label_tokens, batch.label_tokens);
    EXPECT_TRUE(std::equal(batch.labels.begin(), batch.labels.end(), full.labels.begin()));
    for (size_t row = own; row < full.tokens.size(); ++row) {
      EXPECT_EQ(full.labels[row], data::kIgnoreIndex);
    }
    size_t longest = 0;
    while (batch.cu_seqlens[longest + 1] - batch.cu_seqlens[longest] != batch.max_seqlen) ++longest;
    const auto begin_of_longest = static_cast<size_t>(batch.cu_seqlens[longest]);
    for (size_t row = own; row < full.tokens.size(); ++row) {
      const auto position = static_cast<size_t>(full.position_ids[row]);
      ASSERT_EQ(full.tokens[row], batch.tokens[begin_of_longest + position]);
    }
    for (size_t d = 0; d + 1 < full.cu_seqlens.size(); ++d) {
      const int32_t begin = full.cu_seqlens[d], length = full.cu_seqlens[d + 1] - begin;
      EXPECT_GT(length, 0);
      EXPECT_LE(length, batch.max_seqlen);
      for (int32_t p = 0; p < length; ++p)
        ASSERT_EQ(full.position_ids[static_cast<size_t>(begin + p)], p);
    }
  }
}

TEST(FilledUp, RowsBehindTheLabelsHaveNone) {
  const data::Batch batch = batch_of({5, 9});
  const BatchSizes sizes = {64, 40, 16, 16};
  RopeCache cache({});
  const PackedBatch packed =
      prepare_batch(batch, cache, BatchTarget(at::kCPU), {3, 5, true}, {.sizes = sizes});
  EXPECT_EQ(packed.sizes, sizes);
  EXPECT_EQ(packed.num_tokens(), 64);
  EXPECT_EQ(packed.context.max_seqlen, 16);
  ASSERT_EQ(packed.labels.size(0), 40);
  const at::Tensor own = at::tensor({0, 3, 5, 8, 11}, at::kLong);
  EXPECT_TRUE(at::equal(packed.label_rows.narrow(0, 0, 5), own));
  EXPECT_TRUE(at::equal(packed.labels.narrow(0, 0, 5).to(at::kLong),
                        packed.tokens.index_select(0, own + 1)));
  EXPECT_TRUE(packed.labels.narrow(0, 5, 35).eq(data::kIgnoreIndex).all().item<bool>());
  for (int64_t i = 5; i < 40; ++i)
    EXPECT_FALSE(own.eq(packed.label_rows[i]).any().item<bool>()) << i;
}

/// A batch whose every token has a label has no row to point to, and needs none.
TEST(FilledUp, WhereEveryTokenHasALabel) {
  data::Batch batch = batch_of({64});
  std::fill(batch.labels.begin(), batch.labels.end(), 5);
  batch.label_tokens = 64;
  const BatchSizes sizes = rounded_sizes(batch);
  EXPECT_EQ(sizes.labels, 64);
  RopeCache cache({});
  const PackedBatch packed =
      prepare_batch(batch, cache, BatchTarget(at::kCPU), {}, {.sizes = sizes});
  EXPECT_TRUE(packed.labels.eq(5).all().item<bool>());
}

/// Loss and gradients are those of the batch alone, with dropout and noise, too.
TEST(FilledUp, TrainsAsTheBatchAlone) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"llama", "qwen3_moe", "gemma2", "qwen3_5", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const auto path = std::filesystem::path(SFTRUN_TEST_DATA) / "families" / name;
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.lora.dropout = 0.2;
    options.neftune_noise_alpha = 5;
    const auto decoder = Decoder::load(weights::Checkpoint::open(path), options);
    decoder->parameters().master().fill_(0.01);
    decoder->parameters().refresh_compute();
    data::Batch batch = batch_of({20, 1, 33});
    for (auto* ids : {&batch.tokens, &batch.labels})
      for (int32_t& id : *ids)
        id = id < 0 ? id : id % static_cast<int32_t>(decoder->arch().vocab_size);
    double loss[2];
    at::Tensor grads[2];
    for (const bool is_full : {false, true}) {
      decoder->parameters().zero_grad();
      BatchOptions how;
      if (is_full) how.sizes = rounded_sizes(batch);
      loss[is_full] =
          Stage(*decoder)
              .forward_backward(prepare_batch(batch, decoder->rope(), decoder->batch_target(),
                                              {42, 3, true}, how),
                                {.grad_scale = 0.5})
              .item<double>();
      grads[is_full] = decoder->parameters().grad().clone();
    }
    EXPECT_NEAR(loss[1] / loss[0], 1, 1e-6);
    EXPECT_TRUE(test::close(grads[1], grads[0], 1e-5));
  }
}

}  // namespace
}  // namespace sftrun::model
