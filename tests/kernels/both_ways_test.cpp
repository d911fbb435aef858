#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/kernels/ops.h"
#include "support/batches.h"
#include "support/tensors.h"
#include "support/test_data.h"

// Attention that sees spans of rows in both directions, on a CPU.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

BatchMetadata spanned_batch(const std::vector<int32_t>& lengths,
                            const std::vector<RowSpan>& spans) {
  BatchMetadata batch = test::batch_of(lengths, 16);
  batch.both_ways = spans;
  return batch;
}

/// The rule as docs/vision-models.md states it, [T, T]: query [row] sees key [column].
at::Tensor seen_pairs(const BatchMetadata& batch, int64_t window) {
  const int64_t rows = batch.cu_seqlens.back();
  at::Tensor document = at::empty({rows}, at::kLong), span = at::full({rows}, -1, at::kLong);
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i)
    document.slice(0, batch.cu_seqlens[i], batch.cu_seqlens[i + 1]).fill_(static_cast<int64_t>(i));
  for (size_t i = 0; i < batch.both_ways.size(); ++i)
    span.slice(0, batch.both_ways[i].first, batch.both_ways[i].end).fill_(static_cast<int64_t>(i));
  const auto equal = [](const at::Tensor& x) { return x.unsqueeze(1) == x.unsqueeze(0); };
  const at::Tensor back = at::arange(rows).unsqueeze(1) - at::arange(rows).unsqueeze(0);
  const at::Tensor same_span = equal(span).logical_and((span >= 0).unsqueeze(1));
  at::Tensor seen = equal(document).logical_and((back >= 0).logical_or(same_span));
  if (window > 0) seen = seen.logical_and(back < window);
  return seen;
}

struct SpanCase {
  const char* name;
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
  std::vector<RowSpan> spans;
  int64_t window = 0;
  double softcap = 0;
  bool sinks = false;
};

AttentionShape span_shape(const SpanCase& c) {
  AttentionShape shape{c.heads,    c.kv_heads,
                       c.head_dim, 1 / std::sqrt(static_cast<double>(c.head_dim)),
                       c.window,   c.softcap};
  shape.both_ways = true;
  return shape;
}

/// SpanResults of a forward and backward pass.
struct SpanResults {
  at::Tensor out, dq, dk, dv, d_sinks;
};
struct SpanInputs {
  at::Tensor q, k, v, d_out, sinks;
};

SpanInputs span_inputs(const SpanCase& c, int64_t tokens, at::ScalarType dtype) {
  return {normal({tokens, c.heads * c.head_dim}, 1, dtype),
          normal({tokens, c.kv_heads * c.head_dim}, 2, dtype),
          normal({tokens, c.kv_heads * c.head_dim}, 3, dtype),
          normal({tokens, c.heads * c.head_dim}, 4, dtype),
          c.sinks ? normal({c.heads}, 5, dtype) : at::Tensor()};
}

SpanResults span_results(const SpanInputs& in, const BatchMetadata& batch,
                         const AttentionShape& shape) {
  const AttentionOutput saved = attention_forward(in.q, in.k, in.v, batch, shape, in.sinks);
  const AttentionGrads d = attention_backward(in.d_out, in.q, in.k, in.v, saved, batch, shape);
  return {saved.out, d.dq, d.dk, d.dv,
          in.sinks.defined() ? attention_sinks_grad(in.d_out, saved, in.sinks) : at::Tensor()};
}

/// softmax over the pairs that the rule allows, in fp64, and its gradients by autograd.
SpanResults dense_results(const SpanInputs& in, const BatchMetadata& batch,
                          const AttentionShape& s) {
  const auto leaf = [](const at::Tensor& x) {
    return x.defined() ? x.to(at::kDouble).detach().requires_grad_() : x;
  };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v), sinks = leaf(in.sinks);
  const int64_t rows = q.size(0);
  const auto heads_of = [&](const at::Tensor& x, int64_t heads) {
    return x.view({rows, heads, s.head_dim})
        .transpose(0, 1)
        .repeat_interleave(s.num_heads / heads, 0);
  };
  at::Tensor scores =
      at::matmul(heads_of(q, s.num_heads), heads_of(k, s.num_kv_heads).transpose(1, 2)) * s.scale;
  if (s.softcap > 0) scores = at::tanh(scores / s.softcap) * s.softcap;
  scores = scores.masked_fill(seen_pairs(batch, s.window).logical_not(), -INFINITY);
  if (sinks.defined()) scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, rows, 1})}, -1);
  const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, rows);
  const at::Tensor out =
      at::matmul(weights, heads_of(v, s.num_kv_heads)).transpose(0, 1).reshape({rows, -1});
  torch::autograd::backward({out}, {in.d_out.to(at::kDouble)});
  return {out, q.grad(), k.grad(), v.grad(), sinks.defined() ? sinks.grad() : at::Tensor()};
}

void expect_close_results(const SpanResults& made, const SpanResults& expected, double tolerance) {
  EXPECT_TRUE(close(made.out, expected.out, tolerance)) << "out";
  EXPECT_TRUE(close(made.dq, expected.dq, tolerance)) << "dq";
  EXPECT_TRUE(close(made.dk, expected.dk, tolerance)) << "dk";
  EXPECT_TRUE(close(made.dv, expected.dv, tolerance)) << "dv";
  if (expected.d_sinks.defined()) {  // sums over all rows of rounded outputs, which cancel
    EXPECT_TRUE(close(made.d_sinks, expected.d_sinks, 2 * tolerance)) << "sinks";
  }
}

void expect_same_bits(const SpanResults& made, const SpanResults& expected) {
  EXPECT_TRUE(test::same_bits(made.out, expected.out)) << "out";
  EXPECT_TRUE(test::same_bits(made.dq, expected.dq)) << "dq";
  EXPECT_TRUE(test::same_bits(made.dk, expected.dk)) << "dk";
  EXPECT_TRUE(test::same_bits(made.dv, expected.dv)) << "dv";
}

class BothWays : public ::testing::TestWithParam<std::tuple<SpanCase, at::ScalarType>> {};

TEST_P(BothWays, EqualsADenseSoftmax) {
  const auto& [c, dtype] = GetParam();
  const BatchMetadata batch = spanned_batch(c.lengths, c.spans);
  const SpanInputs inputs = span_inputs(c, batch.cu_seqlens.back(), dtype);
  expect_close_results(span_results(inputs, batch, span_shape(c)),
                       dense_results(inputs, batch, span_shape(c)), test::tolerance_for(dtype));
}

// Tiles have 64 rows. head_dim 8 and 20: composed of operations, as no CPU kernel has them.
INSTANTIATE_TEST_SUITE_P(
    Cases, BothWays,
    ::testing::Combine(
        ::testing::Values(
            SpanCase{"in_one_tile", 2, 1, 16, {40}, {{3, 20}}},
            SpanCase{"first_row", 2, 2, 32, {70, 5}, {{0, 1}, {1, 30}, {70, 72}}},
            SpanCase{"last_row", 2, 1, 32, {70, 90}, {{60, 70}, {150, 160}}},
            SpanCase{"whole_documents",
                     4,
                     2,
                     64,
                     {64, 65, 1, 130},
                     {{0, 64}, {64, 129}, {129, 130}, {130, 260}}},
            SpanCase{"adjacent", 3, 1, 32, {200}, {{10, 60}, {60, 64}, {64, 65}, {65, 150}}},
            SpanCase{"longer_than_window", 2, 1, 32, {300}, {{50, 250}}, 30},
            SpanCase{"window_of_one", 2, 1, 16, {100, 80}, {{5, 90}, {120, 180}}, 1},
            SpanCase{"window_of_a_tile", 2, 1, 16, {260}, {{60, 70}, {120, 200}}, 64},
            SpanCase{"ends_at_tiles", 2, 1, 16, {256}, {{64, 128}, {128, 192}}},
            SpanCase{"over_three_tiles", 9, 3, 64, {30, 400, 7}, {{32, 300}}},
            SpanCase{"some_documents", 2, 1, 16, {90, 100, 80}, {{100, 180}}, 50},
            SpanCase{"capped", 4, 2, 32, {33, 150}, {{40, 140}}, 0, 1.5},
            SpanCase{"capped_window", 4, 2, 32, {150}, {{20, 140}}, 40, 1.5},
            SpanCase{"sinks", 4, 2, 32, {33, 150}, {{0, 33}, {40, 140}}, 0, 0, true},
            SpanCase{"sinks_window_cap", 4, 1, 32, {180}, {{20, 140}}, 25, 2, true},
            SpanCase{"heads_of_256", 2, 1, 256, {100}, {{20, 90}}, 16},
            SpanCase{"composed", 4, 2, 8, {17, 140}, {{3, 17}, {20, 120}}, 9, 2, true},
            SpanCase{"composed_without_window", 3, 1, 20, {64, 9}, {{10, 64}, {64, 73}}}),
        ::testing::Values(at::kFloat, at::kBFloat16)),
    [](const auto& param_info) {
      return std::string(std::get<0>(param_info.param).name) + "_" +
             c10::toString(std::get<1>(param_info.param));
    });

/// Ascending, disjoint spans in about half of the rows of random documents.
SpanCase random_case(std::mt19937& random) {
  const auto below = [&](int32_t n) {
    return std::uniform_int_distribution<int32_t>(0, n - 1)(random);
  };
  SpanCase c{"random", 2, 1 + below(2), 16 * (1 + below(3)), {}, {}};
  int32_t begin = 0;
  for (int32_t documents = 1 + below(4); documents > 0; --documents) {
    const int32_t length = 1 + below(below(2) == 0 ? 20 : 220), end = begin + length;
    c.lengths.push_back(length);
    for (int32_t row = begin + below(40); row < end;) {
      const int32_t last = std::min(end, row + 1 + below(below(2) == 0 ? 10 : 150));
      c.spans.push_back({row, last});
      row = last + (below(3) == 0 ? 0 : below(60));
    }
    begin = end;
  }
  if (below(2) == 0) c.window = 1 + below(120);
  if (below(3) == 0) c.softcap = 1.5;
  c.sinks = below(3) == 0;
  return c;
}

TEST(BothWays, EqualsADenseSoftmaxOnRandomDocuments) {
  std::mt19937 random(11);
  for (int i = 0; i < 30; ++i) {
    const SpanCase c = random_case(random);
    const BatchMetadata batch = spanned_batch(c.lengths, c.spans);
    SCOPED_TRACE(i);
    const at::ScalarType dtype = i % 2 == 0 ? at::kFloat : at::kBFloat16;
    const SpanInputs inputs = span_inputs(c, batch.cu_seqlens.back(), dtype);
    expect_close_results(span_results(inputs, batch, span_shape(c)),
                         dense_results(inputs, batch, span_shape(c)), test::tolerance_for(dtype));
    if (::testing::Test::HasFailure()) return;
  }
}

// Without spans, with spans that the layer does not see, with spans of one row, and in the documents
// without spans of a batch that has some: as causal attention, to the bit.
TEST(BothWays, IsCausalWithoutSpansToTheBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t window : {0, 30}) {
      const SpanCase c{"", 4, 2, 32, {100, 131}, {}, window};
      const SpanInputs inputs = span_inputs(c, 231, dtype);
      AttentionShape causal = span_shape(c);
      causal.both_ways = false;
      const SpanResults expected = span_results(inputs, spanned_batch(c.lengths, {}), causal);
      expect_same_bits(span_results(inputs, spanned_batch(c.lengths, {}), span_shape(c)), expected);
      expect_same_bits(span_results(inputs, spanned_batch(c.lengths, {{5, 90}}), causal), expected);
      expect_same_bits(
          span_results(inputs, spanned_batch(c.lengths, {{7, 8}, {200, 201}}), span_shape(c)),
          expected);
      const SpanResults beside =
          span_results(inputs, spanned_batch(c.lengths, {{20, 90}}), span_shape(c));
      const auto second = [](const at::Tensor& x) { return x.narrow(0, 100, 131).contiguous(); };
      expect_same_bits(
          {second(beside.out), second(beside.dq), second(beside.dk), second(beside.dv), {}},
          {second(expected.out),
           second(expected.dq),
           second(expected.dk),
           second(expected.dv),
           {}});
      EXPECT_FALSE(at::equal(beside.out, expected.out));
    }
  }
}

TEST(BothWays, DoesNotDependOnThreads) {
  const SpanCase c{"", 6, 2, 64, {100, 231}, {{20, 90}, {110, 320}}, 50};
  const BatchMetadata batch = spanned_batch(c.lengths, c.spans);
  const SpanInputs inputs = span_inputs(c, 331, at::kFloat);
  const int threads = at::get_num_threads();
  const SpanResults many = span_results(inputs, batch, span_shape(c));
  at::set_num_threads(1);
  expect_same_bits(span_results(inputs, batch, span_shape(c)), many);
  at::set_num_threads(threads);
}

TEST(BothWays, WritesTheEndsOfKeys) {
  std::vector<int32_t> ends(9);
  write_key_ends(std::vector<RowSpan>{{1, 4}, {4, 5}, {6, 9}}, ends);
  EXPECT_EQ(ends, (std::vector<int32_t>{1, 4, 4, 4, 5, 6, 9, 9, 9}));
  write_key_ends({}, ends);
  EXPECT_EQ(ends, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const at::Tensor on_cpu = key_ends_of(spanned_batch({9}, {{2, 4}}), 9, at::kCPU);
  EXPECT_TRUE(at::equal(on_cpu, at::tensor({1, 2, 4, 4, 5, 6, 7, 8, 9}, at::kInt)));
}

TEST(BothWays, RefusesSpansThatAreNotOfOneDocument) {
  const SpanCase c{"", 1, 1, 16, {10, 20}, {}};
  const SpanInputs inputs = span_inputs(c, 30, at::kFloat);
  const auto run = [&](const BatchMetadata& batch) { span_results(inputs, batch, span_shape(c)); };
  for (const std::vector<RowSpan>& spans : std::vector<std::vector<RowSpan>>{{{5, 11}},
                                                                             {{25, 31}},
                                                                             {{-1, 3}},
                                                                             {{4, 4}},
                                                                             {{4, 8}, {7, 9}},
                                                                             {{12, 15}, {2, 5}},
                                                                             {{30, 31}}})
    EXPECT_THROW(run(spanned_batch(c.lengths, spans)), std::logic_error);
  run(spanned_batch(c.lengths, {{5, 10}, {10, 30}}));
  BatchMetadata for_graph = spanned_batch(c.lengths, {{5, 10}});
  for_graph.is_for_graph = true;
  EXPECT_THROW(run(for_graph), std::logic_error);
}

/// Runs of "1", as transformers finds an image's rows.
std::vector<RowSpan> spans_of_types(const std::string& types) {
  std::vector<RowSpan> spans;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != '1') continue;
    const auto row = static_cast<int32_t>(i);
    if (i > 0 && types[i - 1] == '1')
      spans.back().end = row + 1;
    else
      spans.push_back({row, row + 1});
  }
  return spans;
}

/// [T, T]: the pairs that attention gives a weight. All scores are 0, and the value of a key is a
/// one in its own channel, so the output of a query is its weights.
at::Tensor pairs_of_attention(const BatchMetadata& batch, int64_t window, bool both_ways) {
  constexpr int64_t kChannels = 256;
  const int64_t rows = batch.cu_seqlens.back();
  AttentionShape shape{1, 1, kChannels, 1, window};
  shape.both_ways = both_ways;
  const at::Tensor zeros = at::zeros({rows, kChannels}), values = at::eye(rows, kChannels);
  return attention_forward(zeros, zeros, values, batch, shape).out.narrow(1, 0, rows) > 0;
}

/// The same from a fixture's ranges.
at::Tensor pairs_of_ranges(const nlohmann::json& ranges) {
  const auto column = [&](const char* key) {
    return at::tensor(ranges.at(key).get<std::vector<int64_t>>()).unsqueeze(1);
  };
  const at::Tensor keys = at::arange(column("end").size(0)).unsqueeze(0);
  return (keys >= column("first")).logical_and(keys < column("end"));
}

// Gemma 3: both kinds of layers; Gemma 4: those with a window.
TEST(BothWays, SeesWhatTransformersMasksLet) {
  const nlohmann::json cases =
      nlohmann::json::parse(read_text_file(test::kData / "both_ways/masks.json"));
  ASSERT_EQ(cases.size(), 8U);
  for (const nlohmann::json& one : cases) {
    const auto types = one.at("types").get<std::string>();
    SCOPED_TRACE(types);
    const BatchMetadata batch =
        spanned_batch({static_cast<int32_t>(types.size())}, spans_of_types(types));
    const auto window = one.at("window").get<int64_t>();
    for (const char* family : {"gemma3", "gemma4"}) {
      const bool in_full = std::string(family) == "gemma3";
      const at::Tensor full = pairs_of_ranges(one.at(family).at("full")),
                       sliding = pairs_of_ranges(one.at(family).at("sliding"));
      EXPECT_TRUE(at::equal(pairs_of_attention(batch, 0, in_full), full)) << family;
      EXPECT_TRUE(at::equal(pairs_of_attention(batch, window, true), sliding)) << family;
      EXPECT_TRUE(at::equal(seen_pairs(batch, window), sliding)) << family;
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels
