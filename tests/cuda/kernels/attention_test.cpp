#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "attention/attention_launch.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Case {
  std::vector<int32_t> lengths;  // of documents
  int64_t heads, kv_heads, depth, window;
  float softcap;
  std::vector<std::pair<int32_t, int32_t>> spans = {};  // of rows, seen both ways: first, end

  int64_t tokens() const {
    int64_t sum = 0;
    for (const int32_t length : lengths) sum += length;
    return sum;
  }
};
void PrintTo(const Case& c, std::ostream* out) {
  for (const int32_t length : c.lengths) *out << length << " ";
  *out << "tokens, " << c.heads << "/" << c.kv_heads << " heads of " << c.depth << ", window "
       << c.window << ", cap " << c.softcap;
  for (const auto& [first, end] : c.spans) *out << ", span " << first << " to " << end;
}
/// Documents of no token, one, a tile (64, or 32 in fp32), one less and one more; channels of each
/// class of kernels, of no whole chunk of 64, of no whole 16 bytes; heads that share keys.
const std::vector<Case> kCases = {{{1}, 1, 1, 8, 0, 0},
                                  {{0, 5, 0, 0, 3, 0}, 2, 1, 16, 0, 2},
                                  {{1, 2, 3, 40, 1, 17}, 2, 2, 24, 4, 0},
                                  {{65}, 3, 1, 20, 0, 0},
                                  {{63, 1, 66}, 2, 2, 17, 5, 3},
                                  {{64, 64, 3}, 4, 2, 64, 0, 20},
                                  {{131}, 2, 1, 72, 17, 0},
                                  {{200}, 1, 1, 32, 1, 0},
                                  {{150}, 2, 2, 16, 130, 1.5F},
                                  {{33, 100}, 2, 1, 128, 40, 0},
                                  {{97}, 2, 1, 256, 0, 5},
                                  {{7, 80}, 1, 1, 200, 33, 0},
                                  {{90}, 2, 1, 512, 0, 3},
                                  {{20, 50}, 1, 1, 264, 30, 0},
                                  {{40}, 1, 1, 321, 0, 0}};

/// Spans of a row, of whole documents, side by side; longer than the window and than a tile; that end
/// at tiles, and one row before and after; behind empty documents.
const std::vector<Case> kSpanCases = {{{1}, 1, 1, 8, 0, 0, {{0, 1}}},
                                      {{0, 5, 0, 0, 3, 0}, 2, 1, 16, 0, 2, {{1, 5}, {5, 8}}},
                                      {{40, 1, 17}, 2, 2, 24, 4, 0, {{0, 9}, {9, 40}, {50, 58}}},
                                      {{65}, 3, 1, 20, 0, 0, {{0, 65}}},
                                      {{63, 1, 66}, 2, 2, 17, 5, 3, {{63, 64}, {70, 129}}},
                                      {{200}, 4, 2, 64, 0, 0, {{64, 128}, {128, 192}}},
                                      {{200}, 1, 1, 64, 20, 0, {{3, 65}, {65, 191}}},
                                      {{131}, 2, 1, 72, 17, 0, {{20, 63}, {70, 131}}},
                                      {{150}, 1, 1, 32, 1, 0, {{10, 140}}},
                                      {{33, 100}, 2, 1, 128, 40, 0, {{40, 133}}},
                                      {{97}, 2, 1, 256, 0, 5, {{5, 90}}},
                                      {{7, 80}, 1, 1, 200, 33, 0, {{0, 7}, {8, 70}}}};

SFTRUN_FOR_TYPES(CudaAttention);

/// Matrices in fp64, [rows][columns].
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns)
      : columns_(columns), values_(static_cast<size_t>(rows * columns)) {}
  Matrix(const std::vector<float>& values, int64_t columns)
      : columns_(columns), values_(values.begin(), values.end()) {}
  double& at(int64_t row, int64_t column) {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }
  double at(int64_t row, int64_t column) const {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }

 private:
  int64_t columns_;
  std::vector<double> values_;
};

/// Operands in the memory of a card, and what the type made of them.
struct Operands {
  int64_t gap;
  Memory q, k, v, d_out, cu_seqlens, key_ends;
  Case c;
  Type type;

  /// @param apart columns between the rows of q, twice as many of k, three times of v
  Operands(Type of, const Case& shape, int64_t shift, float size, int64_t apart = 0)
      : gap(apart),
        q(rows(of, shape.tokens(), shape.heads * shape.depth, gap, 1, size, shift)),
        k(rows(of, shape.tokens(), shape.kv_heads * shape.depth, 2 * gap, 2, size, shift)),
        v(rows(of, shape.tokens(), shape.kv_heads * shape.depth, 3 * gap, 3, 1, shift)),
        d_out(Memory::of(of, normal(shape.tokens() * shape.heads * shape.depth, 4), shift)),
        cu_seqlens(Memory::raw(ends_of(shape), shift)),
        key_ends(Memory::raw(key_ends_of(shape), shift)),
        c(shape),
        type(of) {}
  static std::vector<int32_t> ends_of(const Case& shape) {
    std::vector<int32_t> ends = {0};
    for (const int32_t length : shape.lengths) ends.push_back(ends.back() + length);
    return ends;
  }
  static std::vector<int32_t> key_ends_of(const Case& shape) {
    std::vector<int32_t> ends(static_cast<size_t>(shape.tokens()));
    std::iota(ends.begin(), ends.end(), 1);
    for (const auto& [first, end] : shape.spans)
      std::fill(ends.begin() + first, ends.begin() + end, end);
    return ends;
  }
  static Memory rows(Type of, int64_t count, int64_t columns, int64_t gap, uint64_t seed,
                     float size, int64_t shift) {
    const std::vector<float> values = normal(count * columns, seed, size);
    std::vector<float> apart;
    for (int64_t row = 0; row < count; ++row) {
      apart.insert(apart.end(), values.begin() + row * columns,
                   values.begin() + (row + 1) * columns);
      apart.insert(apart.end(), static_cast<size_t>(gap), NAN);
    }
    return Memory::of(of, apart, shift);
  }
  /// A matrix like out.
  Matrix contiguous(const Memory& memory) const {
    return {floats(type, memory), c.heads * c.depth};
  }
  Matrix of_q() const { return {floats(type, q), problem().q_stride}; }
  Matrix of_k() const { return {floats(type, k), problem().k_stride}; }
  Matrix of_v() const { return {floats(type, v), problem().v_stride}; }
  AttentionProblem problem() const {
    return {q.data(),
            k.data(),
            v.data(),
            cu_seqlens.as<int32_t>(),
            c.tokens(),
            static_cast<int64_t>(c.lengths.size()),
            c.heads,
            c.kv_heads,
            c.depth,
            c.heads * c.depth + gap,
            c.kv_heads * c.depth + 2 * gap,
            c.kv_heads * c.depth + 3 * gap,
            c.window,
            1 / std::sqrt(static_cast<float>(c.depth)),
            c.softcap,
            c.spans.empty() ? nullptr : key_ends.as<int32_t>()};
  }
};

/// A score, the slope of its cap, and how large the terms of it are.
struct Score {
  double value, slope, size;
};

/// Sums of products over the channels of two heads.
struct Dot {
  double value = 0, size = 0;
};
Dot dot(const Matrix& a, int64_t row_a, int64_t head_a, const Matrix& b, int64_t row_b,
        int64_t head_b, int64_t depth) {
  Dot sum;
  for (int64_t i = 0; i < depth; ++i) {
    const double term = a.at(row_a, head_a * depth + i) * b.at(row_b, head_b * depth + i);
    sum.value += term, sum.size += std::fabs(term);
  }
  return sum;
}

class Reference {
 public:
  explicit Reference(const Operands& of)
      : c_(of.c),
        type_(of.type),
        scale_(of.problem().scale),
        q_(of.of_q()),
        k_(of.of_k()),
        v_(of.of_v()) {
    for (const int32_t length : c_.lengths) {
      const auto begin = static_cast<int64_t>(begins_.size());
      begins_.insert(begins_.end(), static_cast<size_t>(length), begin);
    }
    for (int64_t row = 0; row < c_.tokens(); ++row) ends_.push_back(row + 1);
    for (const auto& [first, end] : c_.spans)
      for (int32_t row = first; row < end; ++row) ends_[static_cast<size_t>(row)] = end;
  }

  void forward() {
    const int64_t tokens = c_.tokens();
    out.assign(static_cast<size_t>(tokens * c_.heads * c_.depth), {});
    lse.assign(static_cast<size_t>(tokens * c_.heads), {});
    for (int64_t head = 0; head < c_.heads; ++head)
      for (int64_t query = 0; query < tokens; ++query) forward_of(head, query);
  }

  /// Of what the kernel is given: `out` and `lse` as they were stored.
  void backward(const Matrix& d_out, const Matrix& stored_out,
                const std::vector<float>& stored_lse) {
    const int64_t tokens = c_.tokens();
    dq.assign(static_cast<size_t>(tokens * c_.heads * c_.depth), {});
    dk.assign(static_cast<size_t>(tokens * c_.kv_heads * c_.depth), {});
    dv = dk;
    for (int64_t head = 0; head < c_.heads; ++head) {
      for (int64_t query = 0; query < tokens; ++query) {
        const double of_lse = stored_lse[static_cast<size_t>(head * tokens + query)];
        backward_of(head, query, d_out, stored_out, of_lse);
      }
    }
  }

  std::vector<Exact> out, lse, dq, dk, dv;  // sizes: of errors, in units of fp32

 private:
  int64_t first_key(int64_t query) const {
    const int64_t begin = begins_[static_cast<size_t>(query)];
    return c_.window > 0 ? std::max(begin, query - c_.window + 1) : begin;
  }
  int64_t end_of_keys(int64_t query) const { return ends_[static_cast<size_t>(query)]; }
  int64_t kv_head(int64_t head) const { return head / (c_.heads / c_.kv_heads); }
  Score score(int64_t head, int64_t query, int64_t key) const {
    const Dot product = dot(q_, query, head, k_, key, kv_head(head), c_.depth);
    const double x = product.value * scale_, size = product.size * scale_;
    if (c_.softcap <= 0) return {x, 1, size};
    const double t = std::tanh(x / c_.softcap);
    return {c_.softcap * t, 1 - t * t, size + c_.softcap};
  }
  /// Roundings of a sum of products, and of an exponential and its like.
  double roundings() const { return 12 + static_cast<double>(c_.depth) / 16; }
  /// What rounding to the type leaves, where tensor cores multiply it.
  double rounded(double value) const {
    return type_ == Type::kFloat32 ? 0 : half_step(type_, value) / kUnit;
  }
  size_t at(int64_t token, int64_t head, int64_t heads, int64_t channel) const {
    return static_cast<size_t>((token * heads + head) * c_.depth + channel);
  }
  static void add(Exact& sum, double term, double error) { sum.value += term, sum.size += error; }

  void forward_of(int64_t head, int64_t query) {
    std::vector<Score> scores;
    double largest = -INFINITY, size = 1;
    for (int64_t key = first_key(query); key < end_of_keys(query); ++key) {
      scores.push_back(score(head, query, key));
      largest = std::max(largest, scores.back().value);
      size = std::max(size, 1 + scores.back().size);
    }
    double sum = 0;
    for (const Score& s : scores) sum += std::exp(s.value - largest);
    const double of_all = largest + std::log(sum);
    lse[static_cast<size_t>(head * c_.tokens() + query)] = {of_all,
                                                            roundings() * (size + std::log(sum))};
    for (size_t i = 0; i < scores.size(); ++i) {
      const double p = std::exp(scores[i].value - of_all);
      for (int64_t n = 0; n < c_.depth; ++n) {
        const double value =
            v_.at(first_key(query) + static_cast<int64_t>(i), kv_head(head) * c_.depth + n);
        add(out[at(query, head, c_.heads, n)], p * value,
            (p * size * roundings() + rounded(p)) * std::fabs(value));
      }
    }
  }

  void backward_of(int64_t head, int64_t query, const Matrix& d_out, const Matrix& stored_out,
                   double of_lse) {
    const Dot delta = dot(d_out, query, head, stored_out, query, head, c_.depth);
    for (int64_t key = first_key(query); key < end_of_keys(query); ++key) {
      const Score s = score(head, query, key);
      const Dot dp = dot(d_out, query, head, v_, key, kv_head(head), c_.depth);
      const double p = std::exp(s.value - of_lse), ds = p * (dp.value - delta.value) * s.slope;
      const double r = roundings() * (1 + s.size + std::fabs(of_lse));
      const double p_error = p * r + rounded(p),
                   ds_error = p * (dp.size + delta.size) * r + rounded(ds);
      for (int64_t n = 0; n < c_.depth; ++n) {
        const size_t of_query = at(query, head, c_.heads, n),
                     of_key = at(key, kv_head(head), c_.kv_heads, n);
        const auto q_at = head * c_.depth + n, k_at = kv_head(head) * c_.depth + n;
        const double k = k_.at(key, k_at), q = q_.at(query, q_at), d = d_out.at(query, q_at);
        add(dq[of_query], scale_ * ds * k, scale_ * ds_error * std::fabs(k));
        add(dk[of_key], scale_ * ds * q, scale_ * ds_error * std::fabs(q));
        add(dv[of_key], p * d, p_error * std::fabs(d));
      }
    }
  }

  Case c_;
  Type type_;
  double scale_;
  Matrix q_, k_, v_;
  std::vector<int64_t> begins_, ends_;
};

std::vector<Memory> run_forward(const Operands& of, int64_t shift) {
  std::vector<Memory> made{Memory::nans(of.type, of.c.tokens() * of.c.heads * of.c.depth, shift),
                           Memory::nans(Type::kFloat32, of.c.tokens() * of.c.heads, shift)};
  launch_attention_forward(of.type, of.problem(), made[0].data(), made[1].as<float>(), nullptr);
  return made;
}

std::vector<Memory> run_backward(const Operands& of, const Memory& out, const Memory& lse,
                                 int64_t shift) {
  const int64_t tokens = of.c.tokens(), kv_numel = tokens * of.c.kv_heads * of.c.depth;
  std::vector<Memory> made{Memory::nans(of.type, tokens * of.c.heads * of.c.depth, shift),
                           Memory::nans(of.type, kv_numel, shift),
                           Memory::nans(of.type, kv_numel, shift)};
  const Memory delta = Memory::nans(Type::kFloat32, tokens * of.c.heads, shift),
               first = Memory::nans(Type::kFloat32, tokens, shift);
  launch_attention_backward(of.type, of.problem(),
                            {of.d_out.data(), out.data(), lse.as<float>(), delta.as<float>(),
                             first.as<int32_t>(), made[0].data(), made[1].data(), made[2].data()},
                            nullptr);
  return made;
}

void expect_forward(Type type, const Case& c, int64_t shift, float size = 1, int64_t gap = 0) {
  const Operands of(type, c, shift, size, gap);
  Reference reference(of);
  reference.forward();
  const auto made = in_every_order([&] { return run_forward(of, shift); });
  EXPECT_TRUE(close(type, made[0], reference.out, 1)) << "out";
  EXPECT_TRUE(close(Type::kFloat32, made[1], reference.lse, 1)) << "lse";
}

std::vector<float> values_of(const std::vector<Exact>& exact) {
  std::vector<float> values;
  for (const Exact& each : exact) values.push_back(static_cast<float>(each.value));
  return values;
}

/// @param sink a score beside the keys', which lse has and out has felt; none: -inf
void expect_backward(Type type, const Case& c, int64_t shift, double sink = -INFINITY,
                     int64_t gap = 0) {
  const Operands of(type, c, shift, 1, gap);
  Reference reference(of);
  reference.forward();
  std::vector<float> out = values_of(reference.out), lse = values_of(reference.lse);
  for (int64_t head = 0; head < c.heads; ++head) {
    for (int64_t token = 0; token < c.tokens(); ++token) {
      float& of_keys = lse[static_cast<size_t>(head * c.tokens() + token)];
      const double of_all = std::log(std::exp(double{of_keys}) + std::exp(sink));
      for (int64_t n = 0; n < c.depth; ++n)
        out[static_cast<size_t>((token * c.heads + head) * c.depth + n)] *=
            static_cast<float>(std::exp(of_keys - of_all));
      of_keys = static_cast<float>(of_all);
    }
  }
  const Memory stored_out = Memory::of(type, out, shift), stored_lse = Memory::raw(lse, shift);
  reference.backward(of.contiguous(of.d_out), of.contiguous(stored_out), lse);
  const auto made = in_every_order([&] { return run_backward(of, stored_out, stored_lse, shift); });
  EXPECT_TRUE(close(type, made[0], reference.dq, 1)) << "dq";
  EXPECT_TRUE(close(type, made[1], reference.dk, 1)) << "dk";
  EXPECT_TRUE(close(type, made[2], reference.dv, 1)) << "dv";
}

TEST_P(CudaAttention, Forward) {
  for_each("case", kCases, [&](const Case& c) { expect_forward(type(), c, 0); });
  expect_forward(type(), kCases[1], 1);
}

// In fp16 some of them: its code is bf16's but for the products' type.
TEST_P(CudaAttention, Backward) {
  const std::span<const Case> cases(kCases);
  for_each("case", type() == Type::kFloat16 ? cases.first(4) : cases,
           [&](const Case& c) { expect_backward(type(), c, 0); });
  expect_backward(type(), kCases[1], 1);
}

TEST_P(CudaAttention, ForwardBothWays) {
  for_each("case", kSpanCases, [&](const Case& c) { expect_forward(type(), c, 0); });
  expect_forward(type(), kSpanCases[1], 1);
}

TEST_P(CudaAttention, BackwardBothWays) {
  const std::span<const Case> cases(kSpanCases);
  for_each("case", type() == Type::kFloat16 ? cases.first(4) : cases,
           [&](const Case& c) { expect_backward(type(), c, 0); });
  expect_backward(type(), kSpanCases[1], 1);
  expect_backward(type(), {{30, 41}, 2, 1, 64, 9, 0, {{4, 30}, {33, 60}}}, 0, 0.5);  // and sinks
}

// A tile of rows without a span has the bits that it has without spans anywhere.
TEST_P(CudaAttention, SpansOfOneRowAreCausal) {
  const Case causal{{37, 90}, 2, 1, 64, 11, 0};
  Case spans = causal;
  spans.spans = {{0, 1}, {36, 37}, {50, 51}};
  const Operands of(type(), causal, 0, 1), with(type(), spans, 0, 1);
  const std::vector<Memory> expected = run_forward(of, 0), made = run_forward(with, 0);
  EXPECT_EQ(made, expected);
  EXPECT_EQ(run_backward(with, made[0], made[1], 0), run_backward(of, made[0], made[1], 0));
}

// What sinks leave for the backward pass is lse and out.
TEST_P(CudaAttention, BackwardBesideSinks) {
  expect_backward(type(), {{30, 41}, 2, 1, 64, 9, 0}, 0, 0.5);
}

// As parts of a joint product are.
TEST_P(CudaAttention, RowsFurtherApartThanLong) {
  const Case c{{2, 70}, 2, 1, 24, 0, 2};
  for (const int64_t gap : {8, 3}) {
    expect_forward(type(), c, 0, 1, gap);
    expect_backward(type(), c, 0, -INFINITY, gap);
  }
}

// Scores of some hundred: softmax takes one key, and its running maximum jumps from tile to tile.
TEST_P(CudaAttention, LargeScores) {
  expect_forward(type(), {{140}, 1, 1, 64, 0, 0}, 0, 6);
  expect_forward(type(), {{140}, 1, 1, 64, 0, 30}, 0, 6);
}

TEST_P(CudaAttention, NothingForNoTokens) {
  const Case c{{0, 0}, 2, 1, 16, 0, 0};
  const Operands of(type(), c, 0, 1);
  const std::vector<Memory> made = run_forward(of, 0);
  EXPECT_EQ(made[0].bytes(), 0U);
  run_backward(of, made[0], made[1], 0);
}

// A document's numbers do not depend on what it is packed with.
TEST_P(CudaAttention, PackedIsAsAlone) {
  const Case both{{37, 90}, 2, 1, 64, 0, 4};
  Operands packed(type(), both, 0, 1), alone(type(), {{37}, 2, 1, 64, 0, 4}, 0, 1);
  for (auto [from, to] :
       {std::pair{&packed.q, &alone.q}, {&packed.k, &alone.k}, {&packed.v, &alone.v}})
    std::memcpy(to->data(), from->data(), to->bytes());
  const std::vector<Memory> of_both = run_forward(packed, 0), of_one = run_forward(alone, 0);
  EXPECT_EQ(std::memcmp(of_both[0].data(), of_one[0].data(), of_one[0].bytes()), 0);
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
