#include <limits>

#include "rms_norm/rms_norm_launch.h"
#include "sftrun/kernels/cpu_table.h"
#include "support.h"

namespace sftrun::kernels::cuda::test {
namespace {

struct Shape {
  int64_t rows, hidden;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.rows << " x " << shape.hidden;
}
/// Rows of up to 1024 channels are a warp's, eight of them in a block; multiples of 8 are read in
/// words of 16 bytes.
constexpr Shape kShapes[] = {{0, 8},    {1, 1},    {2, 2},    {3, 7},    {65, 8},   {7, 16},
                             {1, 9},    {2, 31},   {3, 32},   {1, 33},   {8, 64},   {9, 72},
                             {2, 255},  {1, 256},  {2, 257},  {3, 576},  {2, 577},  {1, 1000},
                             {9, 1000}, {1, 1023}, {3, 1024}, {9, 1024}, {2, 1025}, {3, 1032},
                             {2, 2048}, {1, 2056}, {1, 4095}, {1, 4096}, {2, 4097}, {1, 4104}};
constexpr float kEps = 1e-5F, kOffsets[] = {0.0F, 1.0F};

double norm_of(const float* x, int64_t hidden) {
  double sum = 0;
  for (int64_t i = 0; i < hidden; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1 / std::sqrt(sum / static_cast<double>(hidden) + kEps);
}

struct Forward {
  std::vector<Exact> y, rstd;
};
Forward forward(const std::vector<float>& x, const std::vector<float>& weight, const Shape& shape,
                float offset) {
  Forward result;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const float* of = x.data() + row * shape.hidden;
    const double rstd = norm_of(of, shape.hidden);
    result.rstd.push_back({rstd, rstd});
    for (int64_t i = 0; i < shape.hidden; ++i) {
      const double w = weight[static_cast<size_t>(i)];
      result.y.push_back({of[i] * rstd * (offset + w),
                          std::fabs(of[i] * rstd) * (std::fabs(offset) + std::fabs(w))});
    }
  }
  return result;
}

SFTRUN_FOR_TYPES(CudaRmsNorm);

template <typename T>
Memory cpu_forward(const RowKernels<T>& kernels, Type type, const Memory& x, const Memory& weight,
                   const Shape& shape, float offset) {
  Memory y = Memory::nans(type, shape.rows * shape.hidden);
  std::vector<float> rstd(static_cast<size_t>(shape.rows));
  kernels.rms_norm_forward(x.as<T>(), weight.as<T>(), y.as<T>(), rstd.data(), shape.rows,
                           shape.hidden, kEps, offset);
  return y;
}

/// Of each operand; y's is dx's, too.
struct Shifts {
  int64_t x = 0, weight = 0, y = 0, dy = 0, residual = 0, rstd = 0, copy = 0;
};
constexpr Shifts all_by(int64_t shift) {
  return {shift, shift, shift, shift, shift, shift, shift};
}

/// What is between rows of the result, and in its first kBeforeRows elements.
constexpr float kUntouched = 7;
constexpr int64_t kBeforeRows = 8;

/// Rows with `gap` elements of `between` behind each but the last.
std::vector<float> apart(const std::vector<float>& rows, const Shape& shape, int64_t gap,
                         float between) {
  std::vector<float> all;
  for (int64_t row = 0; row < shape.rows; ++row) {
    if (row > 0) all.insert(all.end(), static_cast<size_t>(gap), between);
    const auto begin = rows.begin() + row * shape.hidden;
    all.insert(all.end(), begin, begin + shape.hidden);
  }
  return all;
}
Memory apart(Type type, const Memory& rows, const Shape& shape, int64_t gap, int64_t shift) {
  return Memory::of(type, apart(floats(type, rows), shape, gap, std::nanf("")), shift);
}

/// A result without numbers yet.
Memory no_numbers(Type type, const Shape& shape, int64_t gap, int64_t shift) {
  const std::vector<float> rows(static_cast<size_t>(shape.rows * shape.hidden), std::nanf(""));
  std::vector<float> all(kBeforeRows, kUntouched);
  for (const float value : apart(rows, shape, gap, kUntouched)) all.push_back(value);
  return Memory::of(type, all, shift);
}

/// Its rows, one behind another. What is not theirs must not have changed.
Memory together(Type type, const Memory& result, const Shape& shape, int64_t gap) {
  const std::vector<float> found = floats(type, result);
  std::vector<float> rows;
  int64_t touched = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i) {
    const float value = found[static_cast<size_t>(i)];
    const int64_t at = i - kBeforeRows;
    if (at >= 0 && at % (shape.hidden + gap) < shape.hidden)
      rows.push_back(value);
    else if (value != kUntouched)
      ++touched;
  }
  EXPECT_EQ(touched, 0) << "elements between rows have changed";
  return Memory::of(type, rows);
}

/// Another copy of x beside y, or none.
enum class Copy { kNone, kMade };
NormForward norm_of(Type type, const Memory& x, const Memory& weight,
                    const std::vector<Memory>& made, const Shape& shape, int64_t gap, float offset,
                    Copy copy) {
  return {.x = x.data(),
          .weight = weight.data(),
          .y = made[0].as<char>() + kBeforeRows * size_of(type),
          .copy = copy == Copy::kMade ? made[2].data() : nullptr,
          .rstd = made[1].as<float>(),
          .rows = shape.rows,
          .hidden = shape.hidden,
          .y_stride = shape.hidden + gap,
          .eps = kEps,
          .offset = offset};
}

/// y without the `gap` elements behind its rows, rstd and the copy, which stays as it is where it
/// is not asked for.
std::vector<Memory> by_cuda(Type type, const Memory& x, const Memory& weight, const Shape& shape,
                            const Shifts& shifts, float offset, Copy copy, int64_t gap = 0) {
  const auto out = in_every_order([&] {
    std::vector<Memory> made{
        no_numbers(type, shape, gap, shifts.y),
        Memory::nans(Type::kFloat32, shape.rows, shifts.rstd),
        Memory::nans(type, copy == Copy::kMade ? shape.rows * shape.hidden : 0, shifts.copy)};
    launch_rms_norm_forward(type, norm_of(type, x, weight, made, shape, gap, offset, copy),
                            nullptr);
    return made;
  });
  return {together(type, out[0], shape, gap), out[1], out[2]};
}

void expect_forward(Type type, const Shape& shape, const Shifts& shifts, float offset, Copy copy,
                    int64_t gap = 0) {
  const int64_t n = shape.rows * shape.hidden;
  const Memory x = Memory::of(type, normal(n, 1, 2), shifts.x), before = x,
               weight = Memory::of(type, normal(shape.hidden, 2), shifts.weight);
  const auto out = by_cuda(type, x, weight, shape, shifts, offset, copy, gap);
  EXPECT_TRUE(x == before);
  EXPECT_TRUE(copy == Copy::kNone || out[2] == x);
  const Forward expected = forward(floats(type, x), floats(type, weight), shape, offset);
  const double roundings = of_norm(shape.hidden);
  EXPECT_TRUE(close(type, out[0], expected.y, roundings));
  EXPECT_TRUE(close(Type::kFloat32, out[1], expected.rstd, roundings));
  if (type == Type::kFloat16) return;
  const Memory cpu = type == Type::kFloat32
                         ? cpu_forward(cpu_kernels().f32, type, x, weight, shape, offset)
                         : cpu_forward(cpu_kernels().bf16, type, x, weight, shape, offset);
  EXPECT_TRUE(close_to_cpu(type, out[0], floats(type, cpu), expected.y, roundings));
}

TEST_P(CudaRmsNorm, Forward) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      // With and without a copy at each offset, and at each address.
      for (const float offset : kOffsets)
        expect_forward(type(), shape, all_by(shift), offset,
                       (shift == 0) == (offset == 0) ? Copy::kMade : Copy::kNone);
    });
  });
}

/// Room behind y's rows, after which they begin at multiples of 16 bytes in every type, in fp32
/// alone, or in none; it stays as it is.
TEST_P(CudaRmsNorm, ForwardWithRoomBehindRows) {
  for_each("gap", std::initializer_list<int64_t>{1, 3, 4, 8, 16, 48}, [&](int64_t gap) {
    for (const Shape& shape : {Shape{1, 8}, Shape{0, 8}, Shape{9, 64}, Shape{3, 33}, Shape{3, 36},
                               Shape{3, 1032}, Shape{2, 1025}}) {
      SCOPED_TRACE(testing::PrintToString(shape));
      expect_forward(type(), shape, {}, 1, Copy::kMade, gap);
      expect_forward(type(), shape, all_by(1), 0, Copy::kNone, gap);
    }
  });
}

/// The copy changes nothing of the rest: the same bits with it and without.
TEST_P(CudaRmsNorm, TheSameWithACopy) {
  for (const Shape& shape : {Shape{9, 72}, Shape{3, 33}, Shape{2, 1032}, Shape{2, 1025}}) {
    const Memory x = Memory::of(type(), normal(shape.rows * shape.hidden, 1, 2)),
                 weight = Memory::of(type(), normal(shape.hidden, 2));
    const auto with = by_cuda(type(), x, weight, shape, {}, 1, Copy::kMade),
               without = by_cuda(type(), x, weight, shape, {}, 1, Copy::kNone);
    EXPECT_TRUE(with[0] == without[0] && with[1] == without[1]) << testing::PrintToString(shape);
    EXPECT_TRUE(with[2] == x) << testing::PrintToString(shape);
  }
}

/// Any value of x: NaN, the smallest, the largest, the infinite, zero of either sign.
TEST_P(CudaRmsNorm, CopiesNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float tiny = type() == Type::kFloat32    ? std::numeric_limits<float>::denorm_min()
                     : type() == Type::kBFloat16 ? 0x1p-133F
                                                 : 0x1p-24F,
              huge = type() == Type::kFloat16 ? 65504.0F : 0x1.fep127F;
  for (const int64_t hidden : {11, 16, 1032}) {
    std::vector<float> values = {kInfinity, -kInfinity, std::nanf(""), 0.0F,  -0.0F,
                                 tiny,      -tiny,      huge,          -huge, 1.0F};
    values.resize(static_cast<size_t>(hidden), -3);
    const Memory x = Memory::of(type(), values), weight = Memory::of(type(), normal(hidden, 2));
    const auto out = by_cuda(type(), x, weight, {1, hidden}, {}, 0, Copy::kMade);
    EXPECT_TRUE(same(type(), out[2], floats(type(), x))) << hidden;
    ASSERT_EQ(floats(type(), x)[5], tiny);
    ASSERT_EQ(floats(type(), x)[7], huge);
  }
}

/// A row whose sum of squares is NaN becomes NaN; the others do not change.
void expect_nan_in_its_row(Type type) {
  const Shape shape{3, 100};
  std::vector<float> values = normal(300, 1);
  values[150] = std::nanf("");
  const Memory x = Memory::of(type, values), weight = Memory::of(type, normal(100, 2));
  const auto out = by_cuda(type, x, weight, shape, {}, 0, Copy::kMade);
  const Forward expected = forward(floats(type, x), floats(type, weight), shape, 0);
  EXPECT_TRUE(close(type, out[0], expected.y, of_norm(100)));
  EXPECT_TRUE(std::isnan(out[1].as<float>()[1]));
  EXPECT_TRUE(same(type, out[2], floats(type, x)));
}
TEST(CudaRmsNormOnce, NanStaysInItsRow) {
  for_each("type", kTypes, expect_nan_in_its_row);
}

/// Contiguous.
struct Backward {
  Memory dy, x, weight, rstd, residual;
};

std::vector<Exact> backward(Type type, const Backward& in, const Shape& shape, float offset,
                            bool with_residual) {
  const auto dy = floats(type, in.dy), x = floats(type, in.x), weight = floats(type, in.weight),
             residual = floats(type, in.residual);
  const auto* rstd = in.rstd.as<float>();
  std::vector<Exact> dx;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto at = [&](int64_t i) { return static_cast<size_t>(row * shape.hidden + i); };
    const auto w = [&](int64_t i) { return offset + double{weight[static_cast<size_t>(i)]}; };
    double dot = 0, dot_size = 0;
    for (int64_t i = 0; i < shape.hidden; ++i) {
      dot += dy[at(i)] * w(i) * x[at(i)];
      dot_size += std::fabs(dy[at(i)] * w(i) * x[at(i)]);
    }
    const double r = rstd[row], of_dot = r * r / static_cast<double>(shape.hidden);
    for (int64_t i = 0; i < shape.hidden; ++i) {
      const double beside = with_residual ? residual[at(i)] : 0;
      const double w_size = std::fabs(offset) + std::fabs(weight[static_cast<size_t>(i)]);
      dx.push_back({beside + r * (dy[at(i)] * w(i) - x[at(i)] * dot * of_dot),
                    std::fabs(beside) + r * (std::fabs(dy[at(i)]) * w_size +
                                             std::fabs(x[at(i)]) * dot_size * of_dot)});
    }
  }
  return dx;
}

template <typename T>
Memory cpu_backward(const RowKernels<T>& kernels, Type type, const Backward& in, const Shape& shape,
                    float offset, bool with_residual) {
  Memory dx = Memory::nans(type, shape.rows * shape.hidden);
  kernels.rms_norm_backward(in.dy.as<T>(), in.x.as<T>(), in.weight.as<T>(), in.rstd.as<float>(),
                            with_residual ? in.residual.as<T>() : nullptr, dx.as<T>(), shape.rows,
                            shape.hidden, offset);
  return dx;
}

Backward inputs_of(Type type, const Shape& shape, const Shifts& shifts) {
  const int64_t n = shape.rows * shape.hidden;
  std::vector<float> rstd = normal(shape.rows, 5);
  for (float& each : rstd) each = std::fabs(each) + 0.1F;
  return {Memory::of(type, normal(n, 1), shifts.dy), Memory::of(type, normal(n, 2, 2), shifts.x),
          Memory::of(type, normal(shape.hidden, 3), shifts.weight), Memory::raw(rstd, shifts.rstd),
          Memory::of(type, normal(n, 4), shifts.residual)};
}

/// Elements between rows, of each operand that may have some.
struct Gaps {
  int64_t dy = 0, residual = 0, dx = 0;
};
void PrintTo(const Gaps& gaps, std::ostream* out) {
  *out << gaps.dy << " of dy, " << gaps.residual << " of the residual, " << gaps.dx << " of dx";
}

/// dx alone, contiguous.
Memory by_cuda(Type type, const Backward& in, const Shape& shape, const Shifts& shifts,
               const Gaps& gaps, float offset, bool with_residual) {
  const Memory dy = apart(type, in.dy, shape, gaps.dy, shifts.dy),
               residual = apart(type, in.residual, shape, gaps.residual, shifts.residual),
               before_dy = dy, before_residual = residual;
  const auto out = in_every_order([&] {
    std::vector<Memory> made{no_numbers(type, shape, gaps.dx, shifts.y)};
    const NormBackward norm{.dy = dy.data(),
                            .x = in.x.data(),
                            .weight = in.weight.data(),
                            .rstd = in.rstd.as<float>(),
                            .residual = with_residual ? residual.data() : nullptr,
                            .dx = made[0].as<char>() + kBeforeRows * size_of(type),
                            .rows = shape.rows,
                            .hidden = shape.hidden,
                            .dy_stride = shape.hidden + gaps.dy,
                            .residual_stride = shape.hidden + gaps.residual,
                            .dx_stride = shape.hidden + gaps.dx,
                            .offset = offset};
    launch_rms_norm_backward(type, norm, nullptr);
    return made;
  });
  EXPECT_TRUE(dy == before_dy && residual == before_residual);
  return together(type, out[0], shape, gaps.dx);
}

void expect_backward(Type type, const Shape& shape, const Shifts& shifts, float offset,
                     bool with_residual, const Gaps& gaps = {}) {
  const Backward in = inputs_of(type, shape, shifts);
  const Memory out = by_cuda(type, in, shape, shifts, gaps, offset, with_residual);
  const std::vector<Exact> expected = backward(type, in, shape, offset, with_residual);
  const double roundings = of_norm(shape.hidden);
  EXPECT_TRUE(close(type, out, expected, roundings));
  if (type == Type::kFloat16) return;
  const Memory cpu = type == Type::kFloat32
                         ? cpu_backward(cpu_kernels().f32, type, in, shape, offset, with_residual)
                         : cpu_backward(cpu_kernels().bf16, type, in, shape, offset, with_residual);
  EXPECT_TRUE(close_to_cpu(type, out, floats(type, cpu), expected, roundings));
}

TEST_P(CudaRmsNorm, Backward) {
  for_each("shape", kShapes, [&](const Shape& shape) {
    for_each("shift", kShifts, [&](int64_t shift) {
      expect_backward(type(), shape, all_by(shift), 0, true);
      expect_backward(type(), shape, all_by(shift), 1, false);
    });
  });
}

/// Gaps after which rows begin at multiples of 16 bytes in every type, in fp32 alone, in none, and
/// of one operand alone.
constexpr Gaps kGaps[] = {{8, 8, 8}, {16, 24, 64}, {4, 4, 4}, {8, 4, 8}, {1, 1, 1},
                          {3, 5, 7}, {1, 0, 0},    {0, 1, 0}, {0, 0, 1}, {8, 0, 0},
                          {0, 8, 0}, {0, 0, 8},    {4, 0, 0}, {0, 4, 0}, {0, 0, 4}};

TEST_P(CudaRmsNorm, RowsFurtherApartThanLong) {
  for_each("gaps", kGaps, [&](const Gaps& gaps) {
    for (const Shape& shape :
         {Shape{1, 8}, Shape{9, 64}, Shape{3, 33}, Shape{3, 36}, Shape{3, 1032}, Shape{2, 1025}}) {
      SCOPED_TRACE(testing::PrintToString(shape));
      expect_backward(type(), shape, {}, 1, true, gaps);
      expect_backward(type(), shape, all_by(1), 0, false, gaps);
    }
  });
  expect_backward(type(), {0, 8}, {}, 1, true, {8, 8, 8});
}

/// What is between rows does not matter: the same bits as without gaps, where the sums are in the
/// same order.
TEST_P(CudaRmsNorm, TheSameWithGaps) {
  constexpr Gaps kEven = {8, 16, 24}, kOdd = {1, 2, 3};
  for (const int64_t hidden : {64, 1032}) {
    const Shape shape{3, hidden};
    const Backward in = inputs_of(type(), shape, {});
    const Memory dense = by_cuda(type(), in, shape, {}, {}, 1, true);
    EXPECT_TRUE(by_cuda(type(), in, shape, {}, kEven, 1, true) == dense) << hidden;
    const Memory odd = by_cuda(type(), in, shape, {}, {0, 0, 1}, 1, true);
    EXPECT_TRUE(by_cuda(type(), in, shape, {}, kOdd, 1, true) == odd) << hidden;
  }
}

/// Whichever operand is not aligned, words of 16 bytes are read only of what is.
TEST_P(CudaRmsNorm, EachAtAnyAddress) {
  constexpr Shifts kOne[] = {{.x = 1},        {.weight = 1}, {.y = 1},   {.dy = 1},
                             {.residual = 1}, {.rstd = 1},   {.copy = 1}};
  for (const Shifts& shifts : kOne) {
    for (const Shape& shape : {Shape{3, 64}, Shape{2, 1032}}) {
      expect_forward(type(), shape, shifts, 1, Copy::kMade);
      expect_backward(type(), shape, shifts, 1, true);
    }
  }
}

}  // namespace
}  // namespace sftrun::kernels::cuda::test
