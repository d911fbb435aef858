#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

SFTRUN_FOR_TYPES(CudaHeads);

struct Norm {
  bool is_there;
  float eps, offset;
};
constexpr Norm kNone{false, 0, 0}, kPlain{true, 1e-6F, 0}, kOffset{true, 1, 1}, kNoEps{true, 0, 1};

/// Two kinds of heads, and how many of their channels are rotated.
constexpr int64_t kNotRotated = -1;
struct Heads {
  int64_t tokens, heads[2], head_dim, rotary_dim;
  Norm norms[2];

  bool is_rotated() const { return rotary_dim != kNotRotated; }
  int64_t half() const { return is_rotated() ? rotary_dim / 2 : 0; }
  int64_t rows(int kind) const { return tokens * heads[kind]; }
  int64_t size(int kind) const { return rows(kind) * head_dim; }
};

/// What begins an element behind an address aligned to 16 bytes, for both kinds or the second only.
enum Shifted : unsigned {
  kX = 1,
  kGrad = 2,
  kY = 4,
  kWeight = 8,
  kCos = 16,
  kSin = 32,
  kRstd = 64,
  kOfSecond = 128,
  kEverything = 127
};

struct Kind {
  Memory x, grad, weight, rstd;  ///< rstd: what a backward pass reads
  int64_t shift_of_y;
};
struct Inputs {
  Kind kinds[2];
  Memory cos, sin;
};

Kind kind_of(Type type, const Heads& c, int kind, unsigned shifted) {
  const auto shift = [&](unsigned what) -> int64_t {
    return (shifted & what) != 0 && (kind == 1 || (shifted & kOfSecond) == 0) ? 1 : 0;
  };
  const auto seed = static_cast<uint64_t>(10 * kind);
  std::vector<float> rstd = normal(c.rows(kind), seed + 1);
  for (float& each : rstd) each = std::fabs(each) + 0.1F;
  return {Memory::of(type, normal(c.size(kind), seed + 2, 2), shift(kX)),
          Memory::of(type, normal(c.size(kind), seed + 3), shift(kGrad)),
          Memory::of(type, normal(c.head_dim, seed + 4), shift(kWeight)),
          Memory::raw(rstd, shift(kRstd)), shift(kY)};
}
Inputs inputs_of(Type type, const Heads& c, unsigned shifted) {
  std::vector<float> cos = normal(c.tokens * c.half(), 5, 9), sin = cos;
  for (float& angle : cos) angle = std::cos(angle);
  for (float& angle : sin) angle = std::sin(angle);
  return {{kind_of(type, c, 0, shifted), kind_of(type, c, 1, shifted)},
          Memory::raw(cos, (shifted & kCos) != 0 ? 1 : 0),
          Memory::raw(sin, (shifted & kSin) != 0 ? 1 : 0)};
}

// ---- In fp64.

/// As large as the number itself at least.
double magnitude(const Exact& exact) {
  return std::fmax(std::fabs(exact.value), exact.size);
}

/// Channels that are not rotated stay as they are.
void rotate_exact(std::vector<Exact>& values, const Heads& c, int kind, const Inputs& in,
                  double sign) {
  for (int64_t row = 0; row < c.rows(kind); ++row) {
    for (int64_t i = 0; i < c.half(); ++i) {
      const int64_t angle = row / c.heads[kind] * c.half() + i;
      const double cos = in.cos.as<float>()[angle], sin = sign * in.sin.as<float>()[angle];
      Exact& low = values[static_cast<size_t>(row * c.head_dim + i)];
      Exact& high = values[static_cast<size_t>(row * c.head_dim + c.half() + i)];
      const Exact a = low, b = high;
      low = {a.value * cos - b.value * sin,
             magnitude(a) * std::fabs(cos) + magnitude(b) * std::fabs(sin)};
      high = {b.value * cos + a.value * sin,
              magnitude(b) * std::fabs(cos) + magnitude(a) * std::fabs(sin)};
    }
  }
}

/// The result and, forward, rstd.
struct Expected {
  std::vector<Exact> y, rstd;
};
std::vector<Exact> exact(const std::vector<float>& values) {
  std::vector<Exact> all;
  for (const float value : values) all.push_back({value, 0});
  return all;
}

Expected forward(Type type, const Heads& c, int kind, const Inputs& in) {
  const auto x = floats(type, in.kinds[kind].x), weight = floats(type, in.kinds[kind].weight);
  const Norm& norm = c.norms[kind];
  Expected all{exact(x), {}};
  for (int64_t row = 0; norm.is_there && row < c.rows(kind); ++row) {
    Exact* head = all.y.data() + row * c.head_dim;
    double sum = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) sum += head[i].value * head[i].value;
    const double rstd =
        1 / std::sqrt(sum / static_cast<double>(c.head_dim) + static_cast<double>(norm.eps));
    all.rstd.push_back({rstd, rstd});
    for (int64_t i = 0; i < c.head_dim; ++i) {
      const double w = weight[static_cast<size_t>(i)], normed = head[i].value * rstd;
      head[i] = {normed * (norm.offset + w), std::fabs(normed) * (norm.offset + std::fabs(w))};
    }
  }
  rotate_exact(all.y, c, kind, in, 1);
  return all;
}

/// One head's gradients before its norm, in place of those after it.
void norm_backward(Exact* grads, const float* x, const std::vector<float>& weight, double rstd,
                   double offset) {
  double dot = 0, dot_size = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    dot += grads[i].value * (offset + weight[i]) * x[i];
    dot_size += magnitude(grads[i]) * (offset + std::fabs(weight[i])) * std::fabs(x[i]);
  }
  const double of_dot = rstd * rstd / static_cast<double>(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) {
    grads[i] = {rstd * (grads[i].value * (offset + weight[i]) - x[i] * dot * of_dot),
                rstd * (magnitude(grads[i]) * (offset + std::fabs(weight[i])) +
                        std::fabs(x[i]) * dot_size * of_dot)};
  }
}
Expected backward(Type type, const Heads& c, int kind, const Inputs& in) {
  const Kind& of = in.kinds[kind];
  const auto x = floats(type, of.x), weight = floats(type, of.weight);
  Expected all{exact(floats(type, of.grad)), {}};
  rotate_exact(all.y, c, kind, in, -1);
  for (int64_t row = 0; c.norms[kind].is_there && row < c.rows(kind); ++row) {
    const int64_t at = row * c.head_dim;
    norm_backward(all.y.data() + at, x.data() + at, weight, of.rstd.as<float>()[row],
                  c.norms[kind].offset);
  }
  return all;
}

// ---- By the CPU's kernels, one after the other.

struct ByCpu {
  Memory y, rstd;
};
template <typename T>
void rotate_by_cpu(const RowKernels<T>& kernels, const Heads& c, int kind, const Inputs& in,
                   Memory& values, float sign) {
  if (!c.is_rotated()) return;
  kernels.rope(values.as<T>(), in.cos.as<float>(), in.sin.as<float>(), c.tokens, c.heads[kind],
               c.head_dim, c.rotary_dim, sign);
}
template <typename T>
ByCpu cpu_forward(const RowKernels<T>& kernels, const Heads& c, int kind, const Inputs& in) {
  const Kind& of = in.kinds[kind];
  const Norm& norm = c.norms[kind];
  ByCpu made{of.x, of.rstd};
  if (norm.is_there) {
    kernels.rms_norm_forward(of.x.as<T>(), of.weight.as<T>(), made.y.as<T>(), made.rstd.as<float>(),
                             c.rows(kind), c.head_dim, norm.eps, norm.offset);
  }
  rotate_by_cpu(kernels, c, kind, in, made.y, 1);
  return made;
}
template <typename T>
ByCpu cpu_backward(const RowKernels<T>& kernels, const Heads& c, int kind, const Inputs& in) {
  const Kind& of = in.kinds[kind];
  Memory grad = of.grad;
  rotate_by_cpu(kernels, c, kind, in, grad, -1);
  ByCpu made{grad, of.rstd};
  if (c.norms[kind].is_there) {
    kernels.rms_norm_backward(grad.as<T>(), of.x.as<T>(), of.weight.as<T>(), of.rstd.as<float>(),
                              nullptr, made.y.as<T>(), c.rows(kind), c.head_dim,
                              c.norms[kind].offset);
  }
  return made;
}

// ---- By the kernels.

enum class Pass { kForward, kBackward };

/// Of each kind where the results go, and rstd.
HeadsProblem problem_of(const Heads& c, const Inputs& in, const std::vector<Memory>& made,
                        Pass pass, bool in_place) {
  HeadsProblem problem{};
  problem.tokens = c.tokens, problem.head_dim = c.head_dim;
  if (c.is_rotated()) {
    problem.cos = in.cos.as<float>(), problem.sin = in.sin.as<float>();
    problem.rotary_dim = c.rotary_dim;
  }
  for (int kind = 0; kind < 2; ++kind) {
    if (c.heads[kind] == 0) continue;
    const Kind& of = in.kinds[kind];
    const Norm& norm = c.norms[kind];
    const Memory& y = made[static_cast<size_t>(2 * kind)];
    HeadRows& rows = problem.rows[kind];
    rows = {.x = of.x.data(),
            .grad = pass == Pass::kBackward ? of.grad.data() : nullptr,
            .y = y.data(),
            .weight = norm.is_there ? of.weight.data() : nullptr,
            .rstd = norm.is_there ? made[static_cast<size_t>(2 * kind + 1)].as<float>() : nullptr,
            .heads = c.heads[kind],
            .x_stride = c.heads[kind] * c.head_dim,
            .y_stride = c.heads[kind] * c.head_dim,
            .eps = norm.eps,
            .offset = norm.offset};
    if (in_place) (pass == Pass::kForward ? rows.x : rows.grad) = y.data();
  }
  return problem;
}

/// The first kind's result and rstd, then the second's. In place: over x, or the gradients.
std::vector<Memory> by_cuda(Type type, const Heads& c, const Inputs& in, Pass pass, bool in_place) {
  return in_every_order([&] {
    std::vector<Memory> made;
    for (int kind = 0; kind < 2; ++kind) {
      const Kind& of = in.kinds[kind];
      const Memory y = Memory::nans(type, c.size(kind), of.shift_of_y);
      const Memory rstd = Memory::nans(Type::kFloat32, c.rows(kind));
      made.push_back(!in_place ? y : pass == Pass::kForward ? of.x : of.grad);
      made.push_back(pass == Pass::kForward ? rstd : of.rstd);
    }
    const HeadsProblem problem = problem_of(c, in, made, pass, in_place);
    if (pass == Pass::kForward)
      launch_heads_forward(type, problem, nullptr);
    else
      launch_heads_backward(type, problem, nullptr);
    return made;
  });
}

void expect_of_cpu(Type type, const Heads& c, int kind, const Inputs& in, Pass pass,
                   const Memory& y, const Memory& rstd, const Expected& expected,
                   double roundings) {
  if (type == Type::kFloat16) return;
  const bool is_forward = pass == Pass::kForward;
  const auto of = [&](const auto& kernels) {
    return is_forward ? cpu_forward(kernels, c, kind, in) : cpu_backward(kernels, c, kind, in);
  };
  const ByCpu cpu = type == Type::kFloat32 ? of(cpu_kernels().f32) : of(cpu_kernels().bf16);
  const bool is_normed = c.norms[kind].is_there;
  const double between = is_normed && c.is_rotated() ? between_on_cpu(type) : 0;
  EXPECT_TRUE(close_to_cpu(type, y, floats(type, cpu.y), expected.y, roundings + between));
  if (!is_normed || !is_forward) return;
  EXPECT_TRUE(close_to_cpu(Type::kFloat32, rstd, cpu.rstd.to<float>(), expected.rstd, roundings));
}

void expect_kind(Type type, const Heads& c, int kind, const Inputs& in, Pass pass, const Memory& y,
                 const Memory& rstd) {
  const Expected expected =
      pass == Pass::kForward ? forward(type, c, kind, in) : backward(type, c, kind, in);
  const bool is_normed = c.norms[kind].is_there;
  const double roundings = (is_normed ? of_norm(c.head_dim) : 0) + (c.is_rotated() ? kRope : 0.0);
  EXPECT_TRUE(close(type, y, expected.y, roundings));
  const Kind& of = in.kinds[kind];
  const bool is_forward = pass == Pass::kForward, is_same = !is_normed && !c.is_rotated();
  EXPECT_TRUE(!is_same || y == (is_forward ? of.x : of.grad));
  if (is_forward && is_normed) {
    EXPECT_TRUE(close(Type::kFloat32, rstd, expected.rstd, roundings));
  } else {
    EXPECT_TRUE(rstd == (is_forward ? Memory::nans(Type::kFloat32, c.rows(kind)) : of.rstd));
  }
  expect_of_cpu(type, c, kind, in, pass, y, rstd, expected, roundings);
}

void expect_pass(Type type, const Heads& c, const Inputs& in, Pass pass, bool with_in_place) {
  SCOPED_TRACE(pass == Pass::kForward ? "forward" : "backward");
  const Inputs before = in;
  const auto out = by_cuda(type, c, in, pass, false);
  for (size_t kind = 0; kind < 2; ++kind) {
    SCOPED_TRACE(kind == 0 ? "first kind" : "second kind");
    EXPECT_TRUE(in.kinds[kind].x == before.kinds[kind].x &&
                in.kinds[kind].grad == before.kinds[kind].grad);
    expect_kind(type, c, static_cast<int>(kind), in, pass, out[2 * kind], out[2 * kind + 1]);
  }
  const bool has_norm = c.norms[0].is_there || c.norms[1].is_there;
  if (!with_in_place || (pass == Pass::kForward && has_norm)) return;
  const auto in_place = by_cuda(type, c, in, pass, true);
  for (const size_t kind : {0, 1})
    EXPECT_TRUE(in_place[2 * kind] == out[2 * kind]) << "in place, kind " << kind;
}
void expect_heads(Type type, const Heads& c, unsigned shifted, bool with_in_place = true) {
  const Inputs in = inputs_of(type, c, shifted);
  expect_pass(type, c, in, Pass::kForward, with_in_place);
  expect_pass(type, c, in, Pass::kBackward, with_in_place);
}

struct Dims {
  int64_t head_dim, rotary_dim;
};
void PrintTo(const Dims& dims, std::ostream* out) {
  *out << dims.head_dim << " channels, rotated: " << dims.rotary_dim;
}
constexpr Dims kDims[] = {{2, 2},
                          {2, 0},
                          {2, kNotRotated},
                          {6, 6},
                          {6, 2},
                          {6, 4},
                          {8, 8},
                          {16, 16},
                          {6, kNotRotated},
                          {20, 20},
                          {20, 10},
                          {20, kNotRotated},
                          {64, 64},
                          {64, 32},
                          {64, 16},
                          {64, 24},
                          {64, 0},
                          {64, kNotRotated},
                          {80, 80},
                          {80, 32},
                          {80, 20},
                          {80, 40},
                          {96, 96},
                          {80, kNotRotated},
                          {96, 24},
                          {96, 48},
                          {96, kNotRotated},
                          {128, 128},
                          {128, 64},
                          {128, kNotRotated},
                          {128, 126},
                          {256, 256},
                          {256, 64},
                          {512, 512},
                          {512, 128},
                          {256, kNotRotated},
                          {512, 56},
                          {512, kNotRotated}};
constexpr Norm kNorms[][2] = {{kNone, kNone},    {kPlain, kNone},   {kNone, kOffset},
                              {kPlain, kOffset}, {kOffset, kNoEps}, {kNoEps, kPlain}};

TEST_P(CudaHeads, OfEachSize) {
  for_each("dims", kDims, [&](const Dims& dims) {
    for (const auto& norms : kNorms) {
      const Heads c{2, {3, 1}, dims.head_dim, dims.rotary_dim, {norms[0], norms[1]}};
      SCOPED_TRACE(testing::Message() << "norms " << norms[0].is_there << norms[1].is_there
                                      << ", offsets " << norms[0].offset << norms[1].offset);
      expect_heads(type(), c, 0);
      expect_heads(type(), c, kEverything, false);
    }
  });
}

struct Count {
  int64_t tokens, first, second;
};
void PrintTo(const Count& count, std::ostream* out) {
  *out << count.tokens << " tokens, heads: " << count.first << " and " << count.second;
}
/// Blocks of threads take 8 to 64 heads.
constexpr Count kCounts[] = {{0, 3, 1},  {0, 7, 0},  {1, 1, 0},  {1, 3, 1},  {1, 7, 7}, {1, 32, 0},
                             {1, 32, 7}, {3, 1, 1},  {3, 3, 0},  {3, 1, 32}, {3, 7, 1}, {65, 1, 0},
                             {65, 1, 1}, {65, 3, 7}, {65, 7, 0}, {3, 32, 7}, {1, 0, 0}, {3, 0, 3}};

TEST_P(CudaHeads, AnyNumberOfThem) {
  for_each("count", kCounts, [&](const Count& count) {
    for (const Dims& dims : {Dims{16, 16}, Dims{6, 4}, Dims{64, 32}, Dims{20, kNotRotated}}) {
      SCOPED_TRACE(testing::PrintToString(dims));
      for (const auto& norms : {kNorms[0], kNorms[3]}) {
        expect_heads(type(),
                     {count.tokens,
                      {count.first, count.second},
                      dims.head_dim,
                      dims.rotary_dim,
                      {norms[0], norms[1]}},
                     0);
      }
    }
  });
  expect_heads(type(), {65, {32, 7}, 16, 8, {kPlain, kNone}}, 0);
}

/// Whichever is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaHeads, EachAtAnyAddress) {
  constexpr unsigned kOne[] = {kX, kGrad, kY, kWeight, kCos, kSin, kRstd};
  for_each("shifted", kOne, [&](unsigned shifted) {
    for (const unsigned of : {0U, static_cast<unsigned>(kOfSecond)}) {
      expect_heads(type(), {3, {2, 1}, 64, 32, {kPlain, kOffset}}, shifted | of, false);
      expect_heads(type(), {3, {2, 1}, 64, 64, {kNone, kNone}}, shifted | of, false);
      expect_heads(type(), {3, {2, 1}, 32, kNotRotated, {kNone, kPlain}}, shifted | of, false);
    }
  });
}

/// What is no number stays in its head.
TEST_P(CudaHeads, NanStaysInItsHead) {
  const Heads c{2, {2, 1}, 64, 32, {kPlain, kPlain}};
  Inputs in = inputs_of(type(), c, 0);
  std::vector<float> x = floats(type(), in.kinds[0].x);
  x[2 * 64 + 5] = std::nanf("");
  const Memory with_nan = Memory::of(type(), x);
  std::memcpy(in.kinds[0].x.data(), with_nan.data(), with_nan.bytes());
  const auto out = by_cuda(type(), c, in, Pass::kForward, false);
  EXPECT_TRUE(close(type(), out[0], forward(type(), c, 0, in).y, of_norm(64) + kRope));
  EXPECT_TRUE(close(type(), out[2], forward(type(), c, 1, in).y, of_norm(64) + kRope));
  for (const int64_t row : {0, 1, 2, 3}) EXPECT_EQ(std::isnan(out[1].as<float>()[row]), row == 2);
}

/// Queries and keys as columns of one matrix, and results as columns of another: the same bits as
/// apart.
void expect_same_in_joint_rows(Type type, int64_t tokens, int64_t head_dim, bool has_norm) {
  constexpr int64_t kHeads[] = {3, 1};
  const int64_t gap = 8, stride = (kHeads[0] + kHeads[1]) * head_dim + gap;
  const std::vector<float> all = normal(tokens * stride, 1);
  const Memory joint = Memory::of(type, all), out = Memory::nans(type, tokens * stride),
               weight = Memory::of(type, normal(head_dim, 2)),
               cos = Memory::raw(normal(tokens * head_dim / 2, 3)),
               sin = Memory::raw(normal(tokens * head_dim / 2, 4));
  const std::vector<float> values = floats(type, joint);
  HeadsProblem together{}, apart{};
  std::vector<Memory> parts, results, rstd;
  for (HeadsProblem* problem : {&together, &apart}) {
    problem->cos = cos.as<float>(), problem->sin = sin.as<float>();
    problem->tokens = tokens, problem->head_dim = problem->rotary_dim = head_dim;
  }
  int64_t first = 0;
  for (const int64_t heads : kHeads) {
    std::vector<float> part;
    for (int64_t token = 0; token < tokens; ++token) {
      const auto begin = values.begin() + token * stride + first;
      part.insert(part.end(), begin, begin + heads * head_dim);
    }
    parts.push_back(Memory::of(type, part));
    results.push_back(Memory::nans(type, tokens * heads * head_dim));
    for (int i = 0; i < 2; ++i) rstd.push_back(Memory::nans(Type::kFloat32, tokens * heads));
    first += heads * head_dim;
  }
  first = 0;
  for (size_t kind = 0; kind < 2; ++kind) {
    const int64_t heads = kHeads[kind];
    const auto rows = [&](const void* x, void* y, size_t of_rstd, int64_t row) {
      return HeadRows{.x = x,
                      .grad = nullptr,
                      .y = y,
                      .weight = has_norm ? weight.data() : nullptr,
                      .rstd = has_norm ? rstd[of_rstd].as<float>() : nullptr,
                      .heads = heads,
                      .x_stride = row,
                      .y_stride = row,
                      .eps = 1e-6F,
                      .offset = 1};
    };
    const size_t at = static_cast<size_t>(first) * size_of(type);
    together.rows[kind] = rows(joint.as<char>() + at, out.as<char>() + at, 2 * kind, stride);
    apart.rows[kind] =
        rows(parts[kind].data(), results[kind].data(), 2 * kind + 1, heads * head_dim);
    first += heads * head_dim;
  }
  launch_heads_forward(type, together, nullptr);
  launch_heads_forward(type, apart, nullptr);
  const std::vector<float> found = floats(type, out);
  first = 0;
  for (size_t kind = 0; kind < 2; ++kind) {
    const std::vector<float> expected = floats(type, results[kind]);
    const int64_t row = kHeads[kind] * head_dim;
    for (int64_t i = 0; i < tokens * row; ++i) {
      ASSERT_EQ(found[static_cast<size_t>(i / row * stride + first + i % row)],
                expected[static_cast<size_t>(i)])
          << "kind " << kind << ", " << i;
    }
    if (has_norm) {
      EXPECT_TRUE(rstd[2 * kind] == rstd[2 * kind + 1]);
    }
    first += row;
  }
}
TEST_P(CudaHeads, ColumnsOfOneMatrix) {
  for (const int64_t head_dim : {6, 64, 128}) {
    for (const bool has_norm : {false, true}) {
      SCOPED_TRACE(head_dim);
      expect_same_in_joint_rows(type(), 5, head_dim, has_norm);
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
