#include <array>
#include <limits>

#include "heads/heads_launch.h"
#include "sftrun/kernels/cpu_table.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

SFTRUN_FOR_TYPES(CudaHeads);

struct Norm {
  bool is_there;
  float eps, offset;
};
constexpr Norm kNone{false, 0, 0}, kPlain{true, 1e-6F, 0}, kOffset{true, 1, 1}, kNoEps{true, 0, 1};

/// Of queries, keys and values, which do not rotate.
using Norms = std::array<Norm, kMaxHeadKinds>;
using Counts = std::array<int64_t, kMaxHeadKinds>;
using Rotates = std::array<bool, kMaxHeadKinds>;

/// Kinds of heads, which of them rotate, and how many of their channels.
constexpr int64_t kNotRotated = -1;
struct Heads {
  int64_t tokens;
  Counts heads;
  int64_t head_dim, rotary_dim;
  Norms norms;
  Rotates rotates = {true, true, false};

  bool has_angles() const { return rotary_dim != kNotRotated; }
  bool is_rotated(size_t kind) const { return has_angles() && rotates[kind]; }
  int64_t half() const { return has_angles() ? rotary_dim / 2 : 0; }
  int64_t rows(size_t kind) const { return tokens * heads[kind]; }
  int64_t size(size_t kind) const { return rows(kind) * head_dim; }
};

/// What begins an element behind an address aligned to 16 bytes, for all kinds or one of them.
enum Shifted : unsigned {
  kX = 1,
  kGrad = 2,
  kY = 4,
  kWeight = 8,
  kCos = 16,
  kSin = 32,
  kRstd = 64,
  kOfSecond = 128,
  kOfThird = 256,
  kEverything = 127
};

struct Kind {
  Memory x, grad, weight, rstd;  ///< rstd: what a backward pass reads
  int64_t shift_of_y;
};
struct Inputs {
  std::array<Kind, kMaxHeadKinds> kinds;
  Memory cos, sin;
};

bool is_shifted(size_t kind, unsigned shifted) {
  if ((shifted & kOfSecond) != 0) return kind == 1;
  return (shifted & kOfThird) == 0 || kind == 2;
}
Kind kind_of(Type type, const Heads& c, size_t kind, unsigned shifted) {
  const auto shift = [&](unsigned what) -> int64_t {
    return (shifted & what) != 0 && is_shifted(kind, shifted) ? 1 : 0;
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
  return {
      {kind_of(type, c, 0, shifted), kind_of(type, c, 1, shifted), kind_of(type, c, 2, shifted)},
      Memory::raw(cos, (shifted & kCos) != 0 ? 1 : 0),
      Memory::raw(sin, (shifted & kSin) != 0 ? 1 : 0)};
}

// ---- In fp64.

/// As large as the number itself at least.
double magnitude(const Exact& exact) {
  return std::fmax(std::fabs(exact.value), exact.size);
}

/// Channels that are not rotated stay as they are.
void rotate_exact(std::vector<Exact>& values, const Heads& c, size_t kind, const Inputs& in,
                  double sign) {
  if (!c.is_rotated(kind)) return;
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

Expected forward(Type type, const Heads& c, size_t kind, const Inputs& in) {
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
Expected backward(Type type, const Heads& c, size_t kind, const Inputs& in) {
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
void rotate_by_cpu(const RowKernels<T>& kernels, const Heads& c, size_t kind, const Inputs& in,
                   Memory& values, float sign) {
  if (!c.is_rotated(kind)) return;
  kernels.rope(values.as<T>(), in.cos.as<float>(), in.sin.as<float>(), c.tokens, c.heads[kind],
               c.head_dim, c.rotary_dim, sign);
}
template <typename T>
ByCpu cpu_forward(const RowKernels<T>& kernels, const Heads& c, size_t kind, const Inputs& in) {
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
ByCpu cpu_backward(const RowKernels<T>& kernels, const Heads& c, size_t kind, const Inputs& in) {
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
  if (c.has_angles()) {
    problem.cos = in.cos.as<float>(), problem.sin = in.sin.as<float>();
    problem.rotary_dim = c.rotary_dim;
  }
  for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
    if (c.heads[kind] == 0) continue;
    const Kind& of = in.kinds[kind];
    const Norm& norm = c.norms[kind];
    const Memory& y = made[2 * kind];
    HeadRows& rows = problem.rows[kind];
    rows = {.x = of.x.data(),
            .grad = pass == Pass::kBackward ? of.grad.data() : nullptr,
            .y = y.data(),
            .weight = norm.is_there ? of.weight.data() : nullptr,
            .rstd = norm.is_there ? made[2 * kind + 1].as<float>() : nullptr,
            .heads = c.heads[kind],
            .x_stride = c.heads[kind] * c.head_dim,
            .y_stride = c.heads[kind] * c.head_dim,
            .eps = norm.eps,
            .offset = norm.offset,
            .rotates = c.rotates[kind]};
    if (in_place) (pass == Pass::kForward ? rows.x : rows.grad) = y.data();
  }
  return problem;
}

/// Each kind's result and rstd. In place: over x, or the gradients.
std::vector<Memory> by_cuda(Type type, const Heads& c, const Inputs& in, Pass pass, bool in_place) {
  return in_every_order([&] {
    std::vector<Memory> made;
    for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
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

void expect_of_cpu(Type type, const Heads& c, size_t kind, const Inputs& in, Pass pass,
                   const Memory& y, const Memory& rstd, const Expected& expected,
                   double roundings) {
  if (type == Type::kFloat16) return;
  const bool is_forward = pass == Pass::kForward;
  const auto of = [&](const auto& kernels) {
    return is_forward ? cpu_forward(kernels, c, kind, in) : cpu_backward(kernels, c, kind, in);
  };
  const ByCpu cpu = type == Type::kFloat32 ? of(cpu_kernels().f32) : of(cpu_kernels().bf16);
  const bool is_normed = c.norms[kind].is_there;
  const double between = is_normed && c.is_rotated(kind) ? between_on_cpu(type) : 0;
  EXPECT_TRUE(close_to_cpu(type, y, floats(type, cpu.y), expected.y, roundings + between));
  if (!is_normed || !is_forward) return;
  EXPECT_TRUE(close_to_cpu(Type::kFloat32, rstd, cpu.rstd.to<float>(), expected.rstd, roundings));
}

void expect_kind(Type type, const Heads& c, size_t kind, const Inputs& in, Pass pass,
                 const Memory& y, const Memory& rstd) {
  const Expected expected =
      pass == Pass::kForward ? forward(type, c, kind, in) : backward(type, c, kind, in);
  const bool is_normed = c.norms[kind].is_there;
  const double roundings =
      (is_normed ? of_norm(c.head_dim) : 0) + (c.is_rotated(kind) ? kRope : 0.0);
  EXPECT_TRUE(close(type, y, expected.y, roundings));
  const Kind& of = in.kinds[kind];
  const bool is_forward = pass == Pass::kForward, is_same = !is_normed && !c.is_rotated(kind);
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
  bool has_norm = false;
  for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
    SCOPED_TRACE(testing::Message() << "kind " << kind);
    EXPECT_TRUE(in.kinds[kind].x == before.kinds[kind].x &&
                in.kinds[kind].grad == before.kinds[kind].grad);
    expect_kind(type, c, kind, in, pass, out[2 * kind], out[2 * kind + 1]);
    has_norm = has_norm || c.norms[kind].is_there;
  }
  if (!with_in_place || (pass == Pass::kForward && has_norm)) return;
  const auto in_place = by_cuda(type, c, in, pass, true);
  for (size_t kind = 0; kind < kMaxHeadKinds; ++kind)
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
constexpr Norms kNorms[] = {{kNone, kNone, kNone},     {kPlain, kNone, kOffset},
                            {kNone, kOffset, kNone},   {kPlain, kOffset, kNone},
                            {kOffset, kNoEps, kPlain}, {kNoEps, kPlain, kNoEps}};
std::string name_of(const Norms& norms) {
  std::string name = "norms with offsets";
  for (const Norm& norm : norms)
    name += norm.is_there ? " " + std::to_string(norm.offset) : std::string(" none");
  return name;
}

TEST_P(CudaHeads, OfEachSize) {
  for_each("dims", kDims, [&](const Dims& dims) {
    for (const auto& norms : kNorms) {
      const Heads c{2, {3, 1, 2}, dims.head_dim, dims.rotary_dim, norms};
      SCOPED_TRACE(name_of(norms));
      expect_heads(type(), c, 0);
      expect_heads(type(), c, kEverything, false);
    }
  });
}

struct Count {
  int64_t tokens;
  Counts heads;
};
void PrintTo(const Count& count, std::ostream* out) {
  *out << count.tokens << " tokens, heads: " << testing::PrintToString(count.heads);
}
/// Blocks of threads take 8 to 64 heads. Any kind may have none.
constexpr Count kCounts[] = {{0, {3, 1, 1}},  {0, {7, 0, 0}},  {1, {1, 0, 0}},  {1, {3, 1, 0}},
                             {1, {7, 7, 7}},  {1, {32, 0, 0}}, {1, {32, 7, 1}}, {3, {1, 1, 1}},
                             {3, {3, 0, 0}},  {3, {1, 32, 5}}, {3, {7, 1, 0}},  {65, {1, 0, 0}},
                             {65, {1, 1, 0}}, {65, {3, 7, 1}}, {65, {7, 0, 2}}, {3, {32, 7, 7}},
                             {1, {0, 0, 0}},  {3, {0, 3, 0}},  {3, {0, 0, 3}},  {3, {0, 2, 5}},
                             {65, {0, 1, 1}}, {1, {0, 0, 1}},  {3, {2, 0, 33}}, {5, {1, 1, 32}}};

TEST_P(CudaHeads, AnyNumberOfThem) {
  for_each("count", kCounts, [&](const Count& count) {
    for (const Dims& dims : {Dims{16, 16}, Dims{6, 4}, Dims{64, 32}, Dims{20, kNotRotated}}) {
      SCOPED_TRACE(testing::PrintToString(dims));
      for (const Norms& norms : {kNorms[0], kNorms[3]})
        expect_heads(type(), {count.tokens, count.heads, dims.head_dim, dims.rotary_dim, norms}, 0);
    }
  });
  expect_heads(type(), {65, {32, 7, 7}, 16, 8, {kPlain, kNone, kNone}}, 0);
}

/// Heads of a warp differ in whether they have a norm and whether they rotate, whichever kind does.
TEST_P(CudaHeads, OfAnyKindInAWarp) {
  constexpr Norm kOf[] = {kNone, kPlain, kOffset};
  for (const Dims& dims : {Dims{64, 64}, Dims{64, 32}, Dims{16, 8}, Dims{6, 4}, Dims{20, 20}}) {
    SCOPED_TRACE(testing::PrintToString(dims));
    for (unsigned i = 0; i < 64; ++i) {
      const auto bit = [&](unsigned of) { return (i >> of & 1) != 0; };
      const Rotates rotates = {bit(0), bit(1), bit(2)};
      const Norms norms = {kOf[bit(3) ? 1 : 0], kOf[bit(4) ? 2 : 0], kOf[bit(5) ? 1 : 0]};
      SCOPED_TRACE(testing::Message()
                   << name_of(norms) << ", rotated: " << rotates[0] << rotates[1] << rotates[2]);
      expect_heads(type(), {3, {2, 1, 3}, dims.head_dim, dims.rotary_dim, norms, rotates}, 0);
      if (HasFailure()) return;
    }
  }
}

/// Whichever is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaHeads, EachAtAnyAddress) {
  constexpr unsigned kOne[] = {kX, kGrad, kY, kWeight, kCos, kSin, kRstd};
  for_each("shifted", kOne, [&](unsigned shifted) {
    constexpr Counts kOf = {2, 1, 2};
    for (const unsigned of : {0U, unsigned{kOfSecond}, unsigned{kOfThird}}) {
      const auto expect = [&](int64_t head_dim, int64_t rotary_dim, const Norms& norms) {
        expect_heads(type(), {3, kOf, head_dim, rotary_dim, norms}, shifted | of, false);
      };
      expect(64, 32, {kPlain, kOffset, kNone});
      expect(64, 64, {kNone, kNone, kNone});
      expect(32, kNotRotated, {kNone, kPlain, kOffset});
    }
  });
}

/// In the place of one number.
void put(Type type, const Memory& at, int64_t element, float value) {
  const Memory number = Memory::of(type, {value});
  std::memcpy(at.as<char>() + static_cast<size_t>(element) * number.bytes(), number.data(),
              number.bytes());
}

/// NaN stays in its head, and infinity stays infinity.
TEST_P(CudaHeads, NanStaysInItsHead) {
  const Heads c{2, {2, 1, 3}, 64, 32, {kPlain, kPlain, kNone}};
  const Inputs in = inputs_of(type(), c, 0);
  put(type(), in.kinds[0].x, 2 * 64 + 5, std::nanf(""));
  put(type(), in.kinds[2].x, 4 * 64 + 7, std::nanf(""));
  const auto out = by_cuda(type(), c, in, Pass::kForward, false);
  for (const size_t kind : {0, 1}) {
    EXPECT_TRUE(close(type(), out[2 * kind], forward(type(), c, kind, in).y, of_norm(64) + kRope));
  }
  for (const int64_t row : {0, 1, 2, 3}) EXPECT_EQ(std::isnan(out[1].as<float>()[row]), row == 2);
  EXPECT_TRUE(same(type(), out[4], floats(type(), in.kinds[2].x)));
}

// ---- Columns of joint matrices.

/// Queries, keys and values side by side in a token's row, then columns of no one's.
struct Columns {
  Counts heads;
  int64_t head_dim, spare;

  int64_t row(size_t kind) const { return heads[kind] * head_dim; }
  int64_t first(size_t kind) const {
    int64_t before = 0;
    for (size_t i = 0; i < kind; ++i) before += row(i);
    return before;
  }
  int64_t stride() const { return first(kMaxHeadKinds) + spare; }
  void* of_kind(Type type, const Memory& joint, size_t kind) const {
    return joint.as<char>() + static_cast<size_t>(first(kind)) * size_of(type);
  }
};
constexpr float kUntouched = 7;

/// The parts in rows; what is in the spare columns, behind the last row's, too, is kUntouched.
Memory joint_of(Type type, const Columns& columns, int64_t tokens,
                const std::array<std::vector<float>, kMaxHeadKinds>& parts) {
  std::vector<float> all;
  for (int64_t token = 0; token < tokens; ++token) {
    for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
      const auto begin = parts[kind].begin() + token * columns.row(kind);
      all.insert(all.end(), begin, begin + columns.row(kind));
    }
    all.insert(all.end(), static_cast<size_t>(columns.spare), kUntouched);
  }
  return Memory::of(type, all);
}

/// Columns of one matrix that are read, and of another that are written, with as many spare columns
/// each: what is written is the same to the bit as apart, and the spare columns stay as they are.
void expect_same_in_joint_rows(Type type, const Heads& c, int64_t spare_of_x, int64_t spare_of_y,
                               Pass pass) {
  const Columns of_x{c.heads, c.head_dim, spare_of_x}, of_y{c.heads, c.head_dim, spare_of_y};
  // Sums are in another order where rows do not begin at 16 bytes, as where y does not.
  const auto has_whole_words = [&](const Columns& columns) {
    return static_cast<size_t>(columns.stride()) * size_of(type) % 16 == 0;
  };
  const Inputs in =
      inputs_of(type, c, has_whole_words(of_x) && has_whole_words(of_y) ? 0 : unsigned{kY});
  const auto expected = by_cuda(type, c, in, pass, false);
  std::array<std::vector<float>, kMaxHeadKinds> x, y, nothing;
  for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
    x[kind] = floats(type, in.kinds[kind].x);
    y[kind] = floats(type, expected[2 * kind]);
    nothing[kind].assign(y[kind].size(), std::nanf(""));
  }
  const Memory joint = joint_of(type, of_x, c.tokens, x), before = joint;
  const auto found = in_every_order([&] {
    std::vector<Memory> made{joint_of(type, of_y, c.tokens, nothing)}, apart;
    for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
      made.push_back(pass == Pass::kForward ? Memory::nans(Type::kFloat32, c.rows(kind))
                                            : in.kinds[kind].rstd);
      apart.push_back(Memory::nans(type, 0));
      apart.push_back(made.back());
    }
    HeadsProblem problem = problem_of(c, in, apart, pass, false);
    for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
      HeadRows& rows = problem.rows[kind];
      rows.x = of_x.of_kind(type, joint, kind), rows.x_stride = of_x.stride();
      rows.y = of_y.of_kind(type, made[0], kind), rows.y_stride = of_y.stride();
      if (rows.rstd != nullptr) rows.rstd = made[kind + 1].as<float>();
    }
    pass == Pass::kForward ? launch_heads_forward(type, problem, nullptr)
                           : launch_heads_backward(type, problem, nullptr);
    return made;
  });
  EXPECT_TRUE(joint == before);
  EXPECT_TRUE(found[0] == joint_of(type, of_y, c.tokens, y));
  for (size_t kind = 0; kind < kMaxHeadKinds; ++kind)
    EXPECT_TRUE(found[kind + 1] == expected[2 * kind + 1]) << "rstd of kind " << kind;
}

struct Spare {
  int64_t x, y;
};
void PrintTo(const Spare& spare, std::ostream* out) {
  *out << spare.x << " of x, " << spare.y << " of y";
}
/// Rows begin at multiples of 16 bytes in every type, in fp32 alone, in none; of both or of one.
constexpr Spare kSpares[] = {{0, 0}, {8, 8}, {0, 48}, {16, 0}, {4, 4}, {4, 8}, {1, 1}, {0, 3}};

TEST_P(CudaHeads, ColumnsOfOneMatrix) {
  constexpr Counts kOf[] = {{3, 1, 1}, {3, 1, 0}, {2, 0, 3}, {0, 2, 1}, {0, 0, 5}};
  constexpr size_t kOfNorms[] = {0, 3, 4};
  size_t next = 0;  // 20 for each spare: each of the three norms meets each number of heads
  for_each("spare", kSpares, [&](const Spare& spare) {
    for (const Dims& dims : {Dims{6, 6}, Dims{64, 64}, Dims{64, 16}, Dims{128, kNotRotated}}) {
      SCOPED_TRACE(testing::PrintToString(dims));
      for (const Counts& heads : kOf) {
        const Norms& norms = kNorms[kOfNorms[next++ % std::size(kOfNorms)]];
        SCOPED_TRACE(testing::PrintToString(heads) + ", " + name_of(norms));
        const Heads c{5, heads, dims.head_dim, dims.rotary_dim, norms};
        for (const Pass pass : {Pass::kForward, Pass::kBackward})
          expect_same_in_joint_rows(type(), c, spare.x, spare.y, pass);
        if (HasFailure()) return;
      }
    }
  });
}

/// The gradients of values are copied to the bit, whatever they are, next to what is rotated.
TEST_P(CudaHeads, GradientsOfValuesAreCopied) {
  for (const int64_t spare : {0, 1, 8, 48}) {
    const Heads c{33, {4, 2, 2}, 16, 16, {kPlain, kPlain, kNone}};
    const Columns columns{c.heads, c.head_dim, spare};
    const Inputs in = inputs_of(type(), c, 0);
    const float infinity = std::numeric_limits<float>::infinity();
    const float values[] = {infinity, -infinity, -0.0F, 0x1p-24F, -65504.0F};
    for (int64_t i = 0; i < 5; ++i) put(type(), in.kinds[2].grad, 33 * i, values[i]);
    const Memory joint = Memory::nans(type(), c.tokens * columns.stride());
    std::vector<Memory> made;
    for (const Kind& kind : in.kinds)
      made.push_back(Memory::nans(type(), 0)), made.push_back(kind.rstd);
    HeadsProblem problem = problem_of(c, in, made, Pass::kBackward, false);
    for (size_t kind = 0; kind < kMaxHeadKinds; ++kind) {
      problem.rows[kind].y = columns.of_kind(type(), joint, kind);
      problem.rows[kind].y_stride = columns.stride();
    }
    launch_heads_backward(type(), problem, nullptr);
    const size_t bytes = static_cast<size_t>(columns.row(2)) * size_of(type());
    for (int64_t token = 0; token < c.tokens; ++token) {
      const char* row = static_cast<char*>(columns.of_kind(type(), joint, 2)) +
                        static_cast<size_t>(token * columns.stride()) * size_of(type());
      const char* grad = in.kinds[2].grad.as<char>() + static_cast<size_t>(token) * bytes;
      ASSERT_EQ(std::memcmp(row, grad, bytes), 0) << "token " << token << ", spare " << spare;
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
